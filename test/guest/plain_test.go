// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"

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

// installPackages lets the recipe install containerd, kubelet and kubeadm, from servers that guests can reach.
func installPackages(t *testing.T, e *env, kit *harness.Kit) {
	t.Helper()
	const kubernetes = "https://pkgs.k8s.io/core:/stable:/{{ . }}/deb"
	kit.Values.StringData["installKubernetes"] = "v1.36"
	changeUserData(t, kit, map[string]string{
		"\nwrite_files:\n":          "\nwrite_files:\n  - path: /etc/apt/apt.conf.d/90proxy\n    content: Acquire::http::Proxy \"" + e.imageServer(t) + "\";\n",
		kubernetes + "/Release.key": e.plainRepository(t) + "/Release.key",
		"[signed-by=/etc/apt/keyrings/kubernetes.asc] " + kubernetes: "[trusted=yes] " + e.plainRepository(t),
	})
}

// loadImages loads the container images, which guests cannot pull.
func loadImages(t testing.TB, n *node) {
	t.Helper()
	n.run(t, "curl -fsS "+n.plainRepository(t)+"/images.tar | ctr --namespace k8s.io images import -")
}
