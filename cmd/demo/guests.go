// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"log"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/fleet"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/fleet/terminal"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/qemu/network"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/harness"
)

const (
	bridge = "vmbr0"
	// guestUser is the user of Debian's cloud images.
	guestUser = "debian"
	// bootTimeout is for emulated guests on a busy machine. Karpenter deletes a NodeClaim whose Node does not register
	// within 15 minutes, and creates another.
	bootTimeout = 20 * time.Minute
	// guestTimeout is for programs in the guest, and for its shutdown.
	guestTimeout = 5 * time.Minute
)

// realGuests are the guests of a demo with real Linux VMs.
type realGuests struct {
	*harness.Guests
	pods *harness.PodNetwork
	// key is the path of the private key for logins, or empty if ssh-keygen is not installed.
	key, publicKey string
}

// newRealGuests prepares real guests. Their consoles and failures are logged in dir.
func newRealGuests(ctx context.Context, dir, images string) (*realGuests, error) {
	g := &realGuests{}
	key := filepath.Join(dir, "id_ed25519")
	if err := exec.CommandContext(ctx, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "demo", "-f", key).Run(); err == nil {
		public, err := os.ReadFile(key + ".pub") //nolint:gosec // written above
		if err != nil {
			return nil, fmt.Errorf("reading SSH key: %w", err)
		}
		g.key, g.publicKey = key, strings.TrimSpace(string(public))
	}
	file, err := os.OpenFile(filepath.Join(dir, "guests.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600) //nolint:gosec // a path of this program
	if err != nil {
		return nil, fmt.Errorf("opening log of guests: %w", err)
	}
	logger := log.New(file, "", log.LstdFlags)
	g.Guests, err = harness.NewGuests(harness.GuestOptions{
		Images: images, ConsoleDir: dir, Log: func(message string) { logger.Print(message) },
		Bridges: map[string]network.Bridge{bridge: {Gateway4: netip.MustParsePrefix("10.10.0.1/16"), DHCP: true}},
	})
	if err != nil {
		return nil, err
	}
	g.pods = harness.NewPodNetwork(g.Guests)
	return g, nil
}

// watch prepares each Node that joins, until the context ends: it installs a pod network and calls joined with the
// command that logs in. It ignores failures: it retries as long as the Node exists.
func (g *realGuests) watch(ctx context.Context, kube client.Client, joined func(node, login string)) {
	known := map[string]int{} // VMIDs by name of the Node
	for ctx.Err() == nil {
		nodes, exist := &corev1.NodeList{}, map[string]bool{}
		if err := kube.List(ctx, nodes); err == nil {
			for i := range nodes.Items {
				node := &nodes.Items[i]
				exist[node.Name] = true
				if vmid, login, err := g.prepare(ctx, known, node); err == nil && vmid != 0 {
					known[node.Name] = vmid
					joined(node.Name, login)
				}
			}
			for name, vmid := range known {
				if !exist[name] {
					g.pods.Remove(vmid)
					delete(known, name)
				}
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}

// prepare installs the pod network on a new Node. It returns zero for a known one.
func (g *realGuests) prepare(ctx context.Context, known map[string]int, node *corev1.Node) (vmid int, login string, err error) {
	if _, ok := known[node.Name]; ok {
		return 0, "", nil
	}
	id, err := v1alpha1.ParseProviderID(node.Spec.ProviderID)
	if err != nil {
		return 0, "", err
	}
	address := ""
	for _, a := range node.Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			address = a.Address
		}
	}
	if address == "" {
		return 0, "", fmt.Errorf("node %s has no address", node.Name)
	}
	if err := g.pods.Add(ctx, id.VMID, address); err != nil {
		return 0, "", err
	}
	if g.key != "" {
		listener, err := g.Network.Forward("127.0.0.1:0", bridge, address+":22")
		if err != nil {
			return 0, "", err
		}
		_, port, _ := strings.Cut(listener.Addr().String(), ":")
		login = fmt.Sprintf("ssh -p %s -i %s -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null %s@127.0.0.1", port, g.key, guestUser)
	}
	return id.VMID, login, nil
}

// controlCharacters matches what a console shows as color and cursor movement.
var controlCharacters = regexp.MustCompile(`\x1b\[[0-9;?]*[A-Za-z]|[[:cntrl:]]`)

// lastOutput returns the last line of each console, to show that a guest is not stuck.
func (g *realGuests) lastOutput(s State) string {
	out := ""
	for _, vm := range s.VMs {
		if line := controlCharacters.ReplaceAllString(harness.Tail(g.ConsoleLog(vm.VMID), 1), ""); vm.Phase != fleet.Ready && line != "" {
			out += "; console: " + terminal.Cut(line, 60)
		}
	}
	return out
}

// saveJournals writes the logs of kubelet and containerd of all guests into a directory.
func (g *realGuests) saveJournals(ctx context.Context, dir string, s State) {
	ctx, cancel := context.WithTimeout(ctx, guestTimeout)
	defer cancel()
	for _, vm := range s.VMs {
		out, err := g.Exec(ctx, vm.VMID, "/bin/sh", "-c", "systemctl --failed --no-legend; journalctl -u kubelet -u containerd -b --no-pager")
		if err != nil {
			out = err.Error()
		}
		_ = os.WriteFile(filepath.Join(dir, fmt.Sprintf("journal-%d.log", vm.VMID)), []byte(out), 0o600) // the log is optional
	}
}

// realParts are the steps with real guests: fewer VMs, because each is a QEMU process of this machine.
func realParts() []part {
	return []part{
		{"scale up", bootTimeout, (*Tour).bootNode},
		{"look inside", guestTimeout, (*Tour).lookInside},
		{"power failure", bootTimeout, (*Tour).resetNode},
		{"scale down", guestTimeout, (*Tour).deleteNode},
	}
}

// bootNode creates a pod that needs a Node, and prints the timeline of the Node.
func (t *Tour) bootNode(ctx context.Context) error {
	t.report.Headline("a pod requests 1 CPU, and there are no nodes: a Linux VM boots under QEMU")
	kube := t.stage.Plane.Client
	// The pod waits for its Node in the next steps. Another VM would need as long to boot.
	if err := kube.Create(ctx, tolerateUnready(harness.Deployment(web, 1), nil)); err != nil {
		return fmt.Errorf("creating deployment: %w", err)
	}
	took, err := t.watch.until(ctx, "the pod to run", func(s State) bool { return s.ready(web) == 1 && s.all(fleet.Ready) })
	if err != nil {
		return err
	}
	t.summary.Add("a pending pod runs on a new Linux VM", took)
	claim := &karpv1.NodeClaim{}
	if err := kube.Get(ctx, client.ObjectKey{Name: t.watch.now().VMs[0].Claim}, claim); err != nil {
		return fmt.Errorf("reading NodeClaim: %w", err)
	}
	timeline, err := harness.ReadTimeline(ctx, kube, claim)
	for _, m := range timeline {
		t.report.Event(terminal.Plain, "%7.1fs after Karpenter's decision: %s", m.After.Seconds(), m.Name)
		t.summary.AddNote("  "+m.Name, seconds(m.After))
	}
	return err
}

// inside prints what the guest is, and the cgroup of the pod.
const inside = `. /etc/os-release
echo "$PRETTY_NAME, Linux $(uname -r), up $(cut -d. -f1 /proc/uptime) s, $(kubelet --version)"
echo "$(cat /sys/class/dmi/id/product_name), $(nproc) CPUs, $(awk '/MemTotal/ {print int($2 / 1024)}' /proc/meminfo) MiB, serial number $(cat /sys/class/dmi/id/product_serial)"
echo "the pod's cgroup: $(sed -n 's/^0:://p' "/proc/$(pgrep -x pause | head -n1)/cgroup")"`

// lookInside shows the guest from inside.
func (t *Tour) lookInside(ctx context.Context) error {
	vm := t.watch.now().VMs[0]
	t.report.Headline("inside VM %d", vm.VMID)
	out, err := t.stage.Guests.Exec(ctx, vm.VMID, "/bin/sh", "-ec", inside)
	for _, l := range strings.Split(strings.TrimSpace(out), "\n") {
		t.report.Event(terminal.Plain, "%s", l)
	}
	return err
}

// resetNode resets the VM. The Node becomes ready again with its own certificate.
func (t *Tour) resetNode(ctx context.Context) error {
	vm := t.watch.now().VMs[0]
	t.report.Headline("VM %d loses power; its boot data and join token are deleted already", vm.VMID)
	node, kube := &corev1.Node{}, t.stage.Plane.Client
	if err := kube.Get(ctx, client.ObjectKey{Name: vm.Claim}, node); err != nil {
		return fmt.Errorf("reading node: %w", err)
	}
	before := node.Status.NodeInfo.BootID
	if err := t.stage.Proxmox.API.Reset(ctx, harness.Guest{Host: vm.Host, VMID: vm.VMID}); err != nil {
		return err
	}
	took, err := t.watch.until(ctx, "the node to be Ready after another boot", func(s State) bool {
		err := kube.Get(ctx, client.ObjectKey{Name: vm.Claim}, node)
		return err == nil && node.Status.NodeInfo.BootID != before && s.all(fleet.Ready) && s.ready(web) == 1
	})
	if err != nil {
		return err
	}
	t.summary.Add("the VM lost power: Ready again", took)
	return nil
}

// deleteNode removes the pod. Karpenter deletes the VM.
func (t *Tour) deleteNode(ctx context.Context) error {
	kube := t.stage.Plane.Client
	t.report.Headline("no pods: Karpenter deletes the VM")
	if err := consolidateAfter(ctx, kube, "5s"); err != nil {
		return err
	}
	if err := harness.Scale(ctx, kube, web, 0); err != nil {
		return err
	}
	took, err := t.watch.until(ctx, "the VM to be deleted", func(s State) bool { return len(s.VMs) == 0 && len(s.Pods) == 0 })
	if err != nil {
		return err
	}
	t.summary.Add("scaled to zero: the VM was deleted", took)
	return nil
}
