// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/guest"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/qemu"
	vnet "github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/qemu/network"
)

// ProxmoxOptions configure the simulated Proxmox cluster.
type ProxmoxOptions struct {
	// Hosts is the number of hosts: pve1, pve2, ...
	Hosts int
	// Version is the version of Proxmox VE: 8.4 (default) or 9.2.
	Version string
	// Speed is a factor by which it is faster than a real cluster. Zero means 1.
	Speed float64
	// Heartbeat is the heartbeat interval of the kubelets in the VMs. Zero means 10 s, as in
	// real kubelets.
	Heartbeat time.Duration
	// BootTime is how long a VM's firmware and kernel take.
	BootTime time.Duration
	// NetworkTime is the time between the registration of a Node and Ready.
	NetworkTime time.Duration
	// InstallTime is how long a builder VM runs. Zero means 15 s; the controller considers less than 10 s a failure.
	InstallTime time.Duration
	// PodGraceLimit is the maximum time that a pod takes to terminate. Zero means no limit.
	PodGraceLimit time.Duration
	// Admin enables the simulator's admin API for interactive use.
	Admin bool
	// Fresh starts a cluster as Proxmox's installer leaves it: no guests and no users except
	// root, whose token the harness then uses.
	Fresh bool
	// Guests are real guests. If it is nil, guests are simulated.
	Guests *Guests
	// Scenario may change the cluster before it starts.
	Scenario func(*pvesim.Scenario)
}

// Proxmox is a simulated cluster in this process. Its VMs boot from their ISO and join the
// Kubernetes cluster named in it.
type Proxmox struct {
	*pvesim.Simulator
	// API is a client of the cluster over HTTPS.
	API *API
	// BootRecorder records what each VM had in its drives when it booted.
	BootRecorder *BootRecorder

	scenario *pvesim.Scenario
	runtime  interface{ Console(vmid int) string }
	// tokenID and tokenSecret are the token in the cloud config.
	tokenID, tokenSecret string
}

// StartProxmox starts the simulated cluster.
func StartProxmox(ctx context.Context, o ProxmoxOptions) (*Proxmox, error) {
	p := &Proxmox{scenario: pvesim.DefaultScenario(o.Hosts), tokenID: pvesim.DefaultTokenID, tokenSecret: pvesim.DefaultTokenSecret}
	if o.Fresh {
		p.makeFresh()
	}
	if o.Version != "" {
		p.scenario.Version = o.Version
	}
	if o.Scenario != nil {
		o.Scenario(p.scenario)
	}
	options := pvesim.Options{Speed: cmp.Or(o.Speed, 1)}
	p.addGuests(o, &options)
	if o.Admin {
		options.AdminListen = "127.0.0.1:0"
	}
	var err error
	if p.Simulator, err = pvesim.New(p.scenario, options); err != nil {
		return nil, err
	}
	// Only Close ends it: cleanup still needs the API after ctx ended.
	if err := p.Start(context.WithoutCancel(ctx)); err != nil {
		return nil, err
	}
	if p.API, err = NewAPI(p.Cluster("simulated")); err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

// addGuests sets the runtime of the guests, with a recorder of their boots.
func (p *Proxmox) addGuests(o ProxmoxOptions, options *pvesim.Options) {
	if o.Guests != nil {
		p.runtime, p.BootRecorder = o.Guests, NewBootRecorder(o.Guests)
		options.Dir, options.TemplateImage = o.Guests.Dir(), o.Guests.Image()
	} else {
		simulated := guest.NewRuntime(guest.Options{
			HeartbeatInterval: o.Heartbeat, RestartDelay: 2 * time.Second, BootTime: o.BootTime, NetworkTime: o.NetworkTime, InstallTime: o.InstallTime,
			PodGraceLimit: o.PodGraceLimit})
		p.runtime, p.BootRecorder = simulated, NewBootRecorder(simulated)
	}
	options.Guests = p.BootRecorder
}

// Cluster returns the cloud config entry of this cluster.
func (p *Proxmox) Cluster(region string) Cluster {
	return Cluster{
		Region: region, URLs: []string{p.URL()}, CA: string(p.CAPEM()),
		TokenID: p.tokenID, TokenSecret: p.tokenSecret,
	}
}

// makeFresh removes what does not exist after an installation.
func (p *Proxmox) makeFresh() {
	s := p.scenario
	s.Guests, s.Roles, s.ACLs, s.SecurityGroups = nil, nil, nil, nil
	s.Storages[0].Content = []string{"iso", "vztmpl", "backup"}
	p.tokenID = "root@pam!harness"
	s.Users = []pvesim.User{{ID: "root@pam", Tokens: []pvesim.Token{{ID: "harness", Secret: p.tokenSecret}}}}
}

// Console returns what a VM wrote to its serial console.
func (p *Proxmox) Console(vmid int) string { return p.runtime.Console(vmid) }

// WriteRequests writes every request that the cluster answered to a file, one per line.
func (p *Proxmox) WriteRequests(file string) error {
	var out strings.Builder
	for _, r := range p.Requests() {
		fmt.Fprintf(&out, "%s %6dms %3d %-6s %s\n", r.Time.Format("15:04:05.000"), r.Took.Milliseconds(), r.Status, r.Method, r.Path)
	}
	if err := os.WriteFile(file, []byte(out.String()), 0o600); err != nil {
		return fmt.Errorf("writing requests: %w", err)
	}
	return nil
}

// CloudController is the Proxmox cloud controller manager in its own process.
type CloudController struct {
	process *process
}

// StartCloudController runs the cloud controller manager's binary as the administrator of a
// kubeconfig. Its files are in dir.
func StartCloudController(binary, dir, kubeconfig string, cluster Cluster) (*CloudController, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("creating directory of the cloud controller manager: %w", err)
	}
	// It knows neither a fingerprint nor a CA: it trusts the system's CAs.
	content, err := yaml.Marshal(map[string]any{"clusters": []map[string]any{{
		"region": cluster.Region, "url": cluster.URLs[0], "insecure": cluster.CA == "",
		"token_id": cluster.TokenID, "token_secret": cluster.TokenSecret,
	}}})
	if err != nil {
		return nil, fmt.Errorf("writing cloud config of the cloud controller manager: %w", err)
	}
	config, ca := filepath.Join(dir, "cloud-config.yaml"), filepath.Join(dir, "ca.pem")
	for path, text := range map[string]string{config: string(content), ca: cluster.CA} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			return nil, fmt.Errorf("writing cloud config of the cloud controller manager: %w", err)
		}
	}
	cmd := exec.Command(binary, "--kubeconfig", kubeconfig, "--cloud-config", config, "--controllers", "cloud-node,cloud-node-lifecycle",
		"--node-monitor-period", "1s", "--leader-elect=false", "--secure-port=0", "--v=4")
	cmd.Env = append(os.Environ(), "SSL_CERT_FILE="+ca)
	p, err := startProcess("cloud controller manager", filepath.Join(dir, "cloud-controller-manager.log"), cmd)
	if err != nil {
		return nil, err
	}
	return &CloudController{process: p}, nil
}

// Log returns the path of its log.
func (c *CloudController) Log() string { return c.process.log }

// Stop ends the process.
func (c *CloudController) Stop() { c.process.stop(10 * time.Second) }

// GuestOptions configure real guests.
type GuestOptions struct {
	// Images is the directory of the images that make guest-image builds.
	Images string
	// ConsoleDir is an existing directory for the logs of the serial consoles.
	ConsoleDir string
	// Bridges are the networks of the guests.
	Bridges map[string]vnet.Bridge
	// Log receives messages about guests that do not start.
	Log func(message string)
}

// Guests are real Linux guests under QEMU with their networks.
type Guests struct {
	*qemu.Runtime
	Network *vnet.Network

	options GuestOptions
}

// GuestImage is the image of the guests, in the directory of images.
const GuestImage = "debian-13.qcow2"

// NewGuests returns a runtime for real guests. It fails if QEMU or the image is missing. The caller passes it to
// StartProxmox, and closes it after the simulator.
func NewGuests(o GuestOptions) (*Guests, error) {
	g := &Guests{options: o}
	var err error
	if g.options.Images, err = filepath.Abs(o.Images); err != nil {
		return nil, fmt.Errorf("finding directory of images: %w", err)
	}
	if _, err := os.Stat(g.Image()); errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("image %s not found; make guest-image builds it", g.Image())
	}
	kernel := strings.TrimSuffix(g.Image(), ".qcow2") + ".vmlinuz"
	if _, err := os.Stat(kernel); err != nil {
		kernel = "" // without it, guests are emulated
	}
	g.Runtime, err = qemu.NewRuntime(qemu.Options{ConsoleDir: o.ConsoleDir, ProbeKernel: kernel, Log: o.Log})
	if err != nil {
		return nil, err
	}
	g.Network, err = vnet.New(vnet.Options{Dir: filepath.Join(g.Dir(), "net"), Bridges: o.Bridges})
	if err != nil {
		g.Close()
		return nil, err
	}
	g.SetNetwork(g.Network)
	return g, nil
}

// Image returns the path of the image of the guests.
func (g *Guests) Image() string { return filepath.Join(g.options.Images, GuestImage) }

// Close deletes all files of the guests.
func (g *Guests) Close() {
	if g.Network != nil {
		_ = g.Network.Close() // it is removed with the directory
	}
	g.Runtime.Close()
}

// Gateways returns the addresses at which guests reach this machine, for the certificate of the API server.
func (g *Guests) Gateways() []string {
	var out []string
	for _, b := range g.options.Bridges {
		for _, gateway := range []netip.Prefix{b.Gateway4, b.Gateway6} {
			if gateway.IsValid() {
				out = append(out, gateway.Addr().String())
			}
		}
	}
	return out
}

// Server returns the URL at which guests on a bridge reach the API server.
func (g *Guests) Server(plane *Plane, bridge string, ipv6 bool) (string, error) {
	server, err := url.Parse(plane.Server)
	if err != nil {
		return "", fmt.Errorf("parsing URL of the API server: %w", err)
	}
	gateway := g.options.Bridges[bridge].Gateway4
	if ipv6 {
		gateway = g.options.Bridges[bridge].Gateway6
	}
	if !gateway.IsValid() {
		return "", fmt.Errorf("bridge %s has no gateway (IPv6: %t)", bridge, ipv6)
	}
	return "https://" + net.JoinHostPort(gateway.Addr().String(), server.Port()), nil
}

// PodNetwork is a simple pod network for real guests: each Node has a subnet for its pods and
// routes to those of the other Nodes. It does what the DaemonSet of a CNI plugin does.
type PodNetwork struct {
	guests *Guests
	nodes  map[int]podNode // by VMID
	next   int
}

// podNode is a member of the pod network.
type podNode struct{ address, subnet string }

// defaultRoute is the destination of all addresses of the family of the node.
func (n podNode) defaultRoute() string {
	if strings.Contains(n.address, ":") {
		return "::/0"
	}
	return "0.0.0.0/0"
}

// NewPodNetwork returns a pod network without Nodes.
func NewPodNetwork(guests *Guests) *PodNetwork {
	return &PodNetwork{guests: guests, nodes: map[int]podNode{}}
}

// installPlugin installs a plugin under a name that exists only in /opt/cni/bin, where CNI
// DaemonSets install theirs, and writes its configuration. Without a route in it, pods reach only
// those of their own Node.
const installPlugin = `cp "$(ls /opt/cni/bin/ptp /usr/lib/cni/ptp 2>/dev/null | head -n1)" /opt/cni/bin/pod-ptp
mkdir -p /etc/cni/net.d
cat > /etc/cni/net.d/10-pods.conflist <<'EOF'
{"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "pod-ptp", "ipam": {"type": "host-local", "subnet": "SUBNET", "routes": [{"dst": "ROUTE"}]}}]}
EOF
`

// Add installs the pod network on the Node of a VM, and the routes between it and the others.
// Pods have the address family of the Node's address.
func (p *PodNetwork) Add(ctx context.Context, vmid int, address string) error {
	node := podNode{address: address, subnet: fmt.Sprintf("10.244.%d.0/24", p.next)}
	if strings.Contains(address, ":") {
		node.subnet = fmt.Sprintf("fd10:244:%d::/64", p.next)
	}
	script := strings.NewReplacer("SUBNET", node.subnet, "ROUTE", node.defaultRoute()).Replace(installPlugin)
	for other, n := range p.nodes {
		script += fmt.Sprintf("ip route replace %s via %s\n", n.subnet, n.address)
		if err := p.run(ctx, other, fmt.Sprintf("ip route replace %s via %s", node.subnet, node.address)); err != nil {
			return err
		}
	}
	if err := p.run(ctx, vmid, script); err != nil {
		return err
	}
	p.next++
	p.nodes[vmid] = node
	return nil
}

// Remove removes the Node of a VM that was deleted.
func (p *PodNetwork) Remove(vmid int) { delete(p.nodes, vmid) }

func (p *PodNetwork) run(ctx context.Context, vmid int, script string) error {
	if _, err := p.guests.Exec(ctx, vmid, "/bin/sh", "-ec", script); err != nil {
		return fmt.Errorf("configuring pod network: %w", err)
	}
	return nil
}
