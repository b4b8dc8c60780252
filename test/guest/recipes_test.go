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
