// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package bootdata_test

import (
	"testing"

	. "github.com/onsi/gomega"
)

// plainImage returns programs of a cloud image without Kubernetes: apt-get records its calls, and curl downloads a key.
// Debian's cloud images have no gpg (canonical/cloud-init#5535).
func plainImage(root string) map[string]string {
	return map[string]string{
		"apt-get": "#!/bin/sh\necho \"$@\" >> " + root + "/apt-get.log\n",
		"curl":    "#!/bin/sh\nwhile [ $# -gt 0 ]; do if [ \"$1\" = -o ]; then exec > \"$2\"; fi; shift; done\necho the key\n",
		"gpg":     "#!/bin/sh\necho 'sh: gpg: not found' >&2\nexit 127\n",
	}
}

// TestRecipesInstallPackages checks that a plain cloud image gets the packages of Kubernetes, from a signed repository.
func TestRecipesInstallPackages(t *testing.T) {
	t.Parallel()
	g, root := NewWithT(t), t.TempDir()
	templates, data := recipeData(t, "kubeadm")
	data.Values["installKubernetes"] = "v1.36"
	files := render(t, templates, data)
	m := machine{root: root, programs: plainImage(root)}
	m.write(t, "/etc/apt/sources.list.d/debian.sources", "")
	m.boot(t, parseCloudConfig(t, files.UserData))
	// apt reads an armored key if the name of its file ends in asc.
	g.Expect(m.read(t, "/etc/apt/sources.list.d/kubernetes.list")).To(Equal(
		"deb [signed-by=/etc/apt/keyrings/kubernetes.asc] https://pkgs.k8s.io/core:/stable:/v1.36/deb/ /\n"))
	g.Expect(m.read(t, "/etc/apt/keyrings/kubernetes.asc")).To(Equal("the key\n"))
	g.Expect(m.read(t, "/apt-get.log")).To(MatchRegexp(`^update\ninstall .* containerd kubelet kubeadm\n$`))
}
