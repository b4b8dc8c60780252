// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"fmt"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/harness"
)

// testCase is a combination of image, hardware, addresses and recipe.
type testCase struct {
	name string
	// image is the cloud image of the template; Debian 13 if empty.
	image string
	// machine and bios are those of the template. Empty means the defaults of ProxmoxTemplate, q35 and SeaBIOS.
	machine, bios string
	// template is an existing template that is used instead of a new one.
	template string
	// builder means that a builder VM prepares the template.
	builder bool
	// bridge is the network of the VMs; the one with DHCP if empty.
	bridge string
	// ipv6 selects the gateway's IPv6 address for the API server.
	ipv6 bool
	// nodes is the number of Nodes; 1 if zero.
	nodes int
	// optional cases run only if CASE contains them.
	optional bool
	// change adapts the recipe's objects.
	change func(t *testing.T, e *env, kit *harness.Kit)
	// prepare runs in a registered Node, before it gets pods.
	prepare func(t testing.TB, n *node)
	// check runs additional checks.
	check func(t testing.TB, n *node)
	// failures are parts of what the checks must report, for a recipe that is known not to work.
	failures []string
	// hardStop deletes the VM without a shutdown of the guest.
	hardStop bool
	// withoutKubeletConfiguration is a recipe that does not pass the provider's kubelet configuration on.
	withoutKubeletConfiguration bool
	// reset restarts the VM without boot data.
	reset bool
}

var cases = []testCase{
	{name: "getting-started", reset: true, check: hasHardware("Q35", "BIOS")},
	{name: "pc", machine: "pc", check: hasHardware("i440FX", "BIOS")},
	{name: "ovmf", bios: "ovmf", check: hasHardware("Q35", "UEFI")},
	// Its kernel has no driver for the IDE slots of q35.
	{name: "debian-12", image: debian12, check: hasHardware("Q35", "BIOS")},
	{name: "static-ipv4", bridge: staticBridge, change: addresses(true, false)},
	{name: "static-ipv6", bridge: staticBridge, ipv6: true, change: addresses(false, true)},
	{name: "dual-stack", bridge: staticBridge, change: addresses(true, true), check: hasBothFamilies},
	{name: "cloudinit", change: proxmoxCloudInit, withoutKubeletConfiguration: true},
	{name: "extra-disk", template: templateWithDisk, check: hasExtraDisk},
	{name: "disks-and-interfaces", change: disksAndInterfaces, check: hasDisksAndInterfaces},
	{name: "virtiofs", change: virtiofsShare, check: hasShare},
	{name: "two-nodes", nodes: 2},
	// The checks must fail without what the recipe does for pods.
	{name: "old-recipe", change: oldRecipe, failures: oldRecipeFailures, hardStop: true},
	// It downloads packages from Debian, and needs twice as long as the others.
	{name: "plain", image: plainImage, change: installPackages, prepare: loadImages, optional: true},
	// It compares with plain: the packages are installed once, by a builder VM.
	{name: "prepared", image: plainImage, builder: true, change: requirePreparation, check: isPrepared, optional: true},
}

// TestGuests boots the guests of each case and checks them from inside.
func TestGuests(t *testing.T) {
	selected := selectCases(t, os.Getenv("CASE"))
	e := newEnv(t)
	for _, c := range selected {
		t.Run(c.name, func(t *testing.T) { e.run(t, c) })
	}
}

// selectCases returns the cases with the given names, which are separated by commas, or all that are not optional.
func selectCases(t *testing.T, names string) (selected []testCase) {
	t.Helper()
	if names == "" {
		return slices.DeleteFunc(slices.Clone(cases), func(c testCase) bool { return c.optional })
	}
	var all []string
	for _, c := range cases {
		all = append(all, c.name)
	}
	for name := range strings.SplitSeq(names, ",") {
		i := slices.Index(all, name)
		if i < 0 {
			t.Fatalf("CASE: found %q, want one of %s", name, strings.Join(all, ", "))
		}
		selected = append(selected, cases[i])
	}
	return selected
}

// Pools of static addresses in the network without DHCP.
var (
	pool4 = v1alpha1.AddressSource{CIDR: "10.20.0.0/16", Ranges: []string{"10.20.0.10-10.20.0.19"}, Gateway: "10.20.0.1"}
	pool6 = v1alpha1.AddressSource{CIDR: "fd10:20::/64", Ranges: []string{"fd10:20::10-fd10:20::19"}, Gateway: "fd10:20::1"}
)

// addresses assigns addresses of the pools.
func addresses(v4, v6 bool) func(*testing.T, *env, *harness.Kit) {
	return func(_ *testing.T, _ *env, kit *harness.Kit) {
		card := v1alpha1.VMInterface{Name: "net0"}
		if v4 {
			card.Address4 = &pool4
		}
		if v6 {
			card.Address6 = &pool6
		}
		kit.Class.Spec.Network = &v1alpha1.Network{Interfaces: []v1alpha1.VMInterface{card}}
	}
}

// hasHardware checks machine type and firmware.
func hasHardware(machine, firmware string) func(testing.TB, *node) {
	return func(t testing.TB, n *node) {
		t.Helper()
		n.expect(t, "machine", "cat /sys/class/dmi/id/product_name", machine)
		n.expect(t, "firmware", "if [ -d /sys/firmware/efi ]; then echo UEFI; else echo BIOS; fi", "^"+firmware+"$")
	}
}

// hasBothFamilies checks that the Node has an IPv4 and an IPv6 address.
func hasBothFamilies(t testing.TB, n *node) {
	t.Helper()
	ips := internalIPs(n.node)
	if len(ips) != 2 || strings.Contains(ips[0], ":") || !strings.Contains(ips[1], ":") {
		t.Errorf("the Node has addresses %v, want an IPv4 and an IPv6 address", ips)
	}
}

// hasExtraDisk checks that the guest has the template's second disk.
func hasExtraDisk(t testing.TB, n *node) {
	t.Helper()
	n.expect(t, "sizes of the disks", "lsblk --nodeps --noheadings --bytes --output SIZE", `(?m)^\s*2147483648$`)
}

// disksAndInterfaces adds disks on two buses, one of them for the kubelet, and a second interface with a static address and
// a route.
func disksAndInterfaces(_ *testing.T, _ *env, kit *harness.Kit) {
	kit.Class.Spec.Disks = []v1alpha1.Disk{
		{Name: "kubelet", Size: "6Gi", MountPath: "/var/lib/kubelet"},
		{Name: "scratch", Size: "1Gi", Bus: v1alpha1.DiskBusVirtIO, MountPath: "/mnt/scratch"},
	}
	second := v1alpha1.VMInterface{Name: "net1", Address4: &v1alpha1.AddressSource{CIDR: pool4.CIDR, Ranges: pool4.Ranges}}
	second.Bridge, second.MTU, second.DefaultRoute = staticBridge, new(int32(1400)), new(false)
	second.Routes = []v1alpha1.InterfaceRoute{{To: "10.99.0.0/16", Via: pool4.Gateway}}
	kit.Class.Spec.Network = &v1alpha1.Network{Interfaces: []v1alpha1.VMInterface{{Name: "net0"}, second}}
}

// hasDisksAndInterfaces checks what the guest made of them.
func hasDisksAndInterfaces(t testing.TB, n *node) {
	t.Helper()
	for path, want := range map[string]string{"/var/lib/kubelet": "^6442450944 ext4$", "/mnt/scratch": "^1073741824 ext4$"} {
		n.expect(t, "disk of "+path, `lsblk --nodeps --noheadings --bytes --raw --output SIZE,FSTYPE "$(findmnt --noheadings --output SOURCE `+path+`)"`, want)
	}
	n.expect(t, "address of eth1", "ip -brief -4 address show dev eth1", ` 10\.20\.0\.1\d?/16`)
	n.expect(t, "MTU of eth1", "cat /sys/class/net/eth1/mtu", "^1400$")
	n.expect(t, "route", "ip route get 10.99.0.1", `via 10\.20\.0\.1 dev eth1`)
	n.expect(t, "default route", "ip route show default", "eth0")
	n.expect(t, "default routes of eth1", "ip route show default dev eth1", "^$")
	server, err := n.guests.Server(n.plane, staticBridge, false)
	must(t, err)
	n.run(t, "bash -c 'exec 3<> /dev/tcp/"+strings.Replace(strings.TrimPrefix(server, "https://"), ":", "/", 1)+"'")
}

const (
	shareMapping = "datasets"
	sharePath    = "/mnt/datasets"
	sharedFile   = "from-host"
)

// virtiofsShare maps a directory with one file and adds it to the NodeClass, as in docs/shares.md.
func virtiofsShare(t *testing.T, e *env, kit *harness.Kit) {
	t.Helper()
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, sharedFile), []byte(t.Name()), 0o600))
	hosts, err := e.proxmox.API.Hosts(t.Context())
	must(t, err)
	mapping := pvesim.Mapping{Kind: "dir", ID: shareMapping}
	for host := range hosts {
		mapping.Map = append(mapping.Map, fmt.Sprintf("node=%s,path=%s", host, dir))
	}
	e.proxmox.AddMapping(mapping)
	kit.Class.Spec.Shares = []v1alpha1.Share{{Mapping: shareMapping, MountPath: sharePath, Cache: "metadata"}}
}

// hasShare checks that the guest mounts the share and can write to it.
func hasShare(t testing.TB, n *node) {
	t.Helper()
	n.expect(t, "share", "findmnt --noheadings --output SOURCE,FSTYPE --raw "+sharePath, "^"+shareMapping+" virtiofs$")
	n.expect(t, "file", fmt.Sprintf("cd %s; cat %[2]s; cp %[2]s copy; cat copy", sharePath, sharedFile), "^"+t.Name()+t.Name()+"$")
}

// oldRecipeFailures is what the checks must report for a Node of oldRecipe.
var oldRecipeFailures = []string{
	"a process of a pod is not in kubepods.slice: pause /",
	"a process of a pod is not in kubepods.slice: guest-test /",
	"a pod with dnsPolicy Default has nameserver 127.0.0.53",
	"in path [/usr/lib/cni]", // the plugins of the pod network are in /opt/cni/bin
}

// oldRecipe removes from the kubeadm recipe what pods need: containerd keeps the configuration of its Debian package, with
// another cgroup driver than the kubelet's and another directory of network plugins, and pods with dnsPolicy Default use
// systemd-resolved.
func oldRecipe(t *testing.T, _ *env, kit *harness.Kit) {
	t.Helper()
	changeUserData(t, kit.Templates, map[string]string{
		"path: /etc/containerd/config.toml": "path: /etc/containerd/unused.toml",
		"echo 'resolvConf: /run/systemd/resolve/resolv.conf' >> /etc/kubernetes/kubelet-config.yaml": "true",
	})
}

// changeUserData replaces parts of a recipe's user data, each of which it must contain once.
func changeUserData(t *testing.T, recipe *corev1.Secret, changes map[string]string) {
	t.Helper()
	userData := recipe.StringData["user-data"]
	for from, to := range changes {
		if count := strings.Count(userData, from); count != 1 {
			t.Fatalf("the recipe contains %q %d times, want once", from, count)
		}
		userData = strings.Replace(userData, from, to, 1)
	}
	recipe.StringData["user-data"] = userData
}

// recorder collects what checks report.
type recorder struct {
	testing.TB
	failures []string
}

// Errorf records a failure.
func (r *recorder) Errorf(format string, args ...any) {
	r.failures = append(r.failures, fmt.Sprintf(format, args...))
}

// checkExpected runs all checks, which must report exactly the expected failures of the case.
func (n *node) checkExpected(t *testing.T) {
	t.Helper()
	if len(n.c.failures) == 0 {
		n.checkAll(t)
		return
	}
	n.createHostPod(t) // now, because the kubelet restarts it less and less often
	r := &recorder{TB: t}
	n.checkAll(r)
	for _, failure := range r.failures {
		if slices.ContainsFunc(n.c.failures, func(want string) bool { return strings.Contains(failure, want) }) {
			t.Logf("expected failure: %s", failure)
		} else {
			t.Errorf("unexpected failure: %s", failure)
		}
	}
	for _, want := range n.c.failures {
		if !slices.ContainsFunc(r.failures, func(failure string) bool { return strings.Contains(failure, want) }) {
			t.Errorf("no check reports %q", want)
		}
	}
}

const (
	// plainImage has neither containerd nor Kubernetes.
	plainImage = "debian-13-plain.qcow2"
	// debianMirror is the source of Debian packages in the image.
	debianMirror = "deb.debian.org"
)

// newImageServer returns a server for images and repositories, which is also a proxy for Debian's packages.
func newImageServer(images string) http.Handler {
	files, packages := http.FileServer(http.Dir(images)), &httputil.ReverseProxy{Rewrite: func(*httputil.ProxyRequest) {}}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Hostname() == debianMirror {
			packages.ServeHTTP(w, r)
		} else {
			files.ServeHTTP(w, r)
		}
	})
}

// imageServer returns the URL of the server of images for guests on the network with DHCP.
func (e *env) imageServer(t testing.TB) string {
	t.Helper()
	local, err := url.Parse(e.images)
	must(t, err)
	return "http://" + dhcpGateway + ":" + local.Port()
}

// plainRepository returns the URL of the packages for the plain image.
func (e *env) plainRepository(t testing.TB) string {
	t.Helper()
	return e.imageServer(t) + "/" + strings.TrimSuffix(plainImage, ".qcow2") + ".repository"
}

// localPackages returns changes of a recipe that installs containerd, kubelet and kubeadm: it uses servers that guests can
// reach. The version is the expression of the Kubernetes version in the recipe.
func (e *env) localPackages(t testing.TB, version string) map[string]string {
	t.Helper()
	kubernetes := "https://pkgs.k8s.io/core:/stable:/{{ " + version + " }}/deb"
	return map[string]string{
		"\nwrite_files:\n":          "\nwrite_files:\n  - path: /etc/apt/apt.conf.d/90proxy\n    content: Acquire::http::Proxy \"" + e.imageServer(t) + "\";\n",
		kubernetes + "/Release.key": e.plainRepository(t) + "/Release.key",
		"[signed-by=/etc/apt/keyrings/kubernetes.asc] " + kubernetes: "[trusted=yes] " + e.plainRepository(t),
	}
}

// installPackages lets the recipe install containerd, kubelet and kubeadm.
func installPackages(t *testing.T, e *env, kit *harness.Kit) {
	t.Helper()
	kit.Values.StringData["installKubernetes"] = "v1.36"
	changeUserData(t, kit.Templates, e.localPackages(t, "."))
}

// importImages returns a command that loads the container images, which guests cannot pull.
func (e *env) importImages(t testing.TB) string {
	t.Helper()
	return "curl -fsS " + e.plainRepository(t) + "/images.tar | ctr --namespace k8s.io images import -"
}

// loadImages loads the container images into a Node.
func loadImages(t testing.TB, n *node) {
	t.Helper()
	n.run(t, n.importImages(t))
}

// prepareTemplate lets a builder VM install what the recipe needs, with the container images.
func (e *env) prepareTemplate(t *testing.T, template *v1alpha1.ProxmoxTemplate) (secret *corev1.Secret) {
	t.Helper()
	secret, err := harness.PreparationSecret()
	must(t, err)
	changeUserData(t, secret, e.localPackages(t, ".Values.version"))
	const cleanUp = "\n      apt-get clean\n"
	changeUserData(t, secret, map[string]string{cleanUp: "\n      " + e.importImages(t) + cleanUp})
	ref := v1alpha1.SecretReference{Namespace: secret.Namespace, Name: secret.Name}
	template.Spec.Prepare = &v1alpha1.Preparation{TemplatesRef: ref, ValuesRef: &ref, DiskSize: "8Gi"}
	return secret
}

// requirePreparation lets the Nodes join only if their template is prepared.
func requirePreparation(_ *testing.T, _ *env, kit *harness.Kit) {
	kit.Values.StringData["prepared"] = "true"
}

// isPrepared checks that the Node has the packages of its template, and an identity of its own.
func isPrepared(t testing.TB, n *node) {
	t.Helper()
	n.run(t, `cat /etc/karpenter-prepared; [ -s /etc/machine-id ]; [ "$(hostname)" = `+n.node.Name+` ]`)
	n.expect(t, "SSH host keys of the Node", "find /etc/ssh -name 'ssh_host_*' -newer /etc/karpenter-prepared", "ssh_host_")
	n.expect(t, "installed packages", "find /var/lib/dpkg/info -newer /etc/karpenter-prepared -name '*.list'", "^$")
}
