// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/harness"
)

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
	if keys := n.run(t, "find /etc/ssh -name 'ssh_host_*' -newer /etc/karpenter-prepared | wc -l"); keys == "0" {
		t.Error("the Node has no SSH host keys of its own")
	}
	if installed := n.run(t, "find /var/lib/dpkg/info -newer /etc/karpenter-prepared -name '*.list'"); installed != "" {
		t.Errorf("the Node installed packages: %s", installed)
	}
}
