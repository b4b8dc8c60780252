// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package bootdata_test

import (
	"testing"

	ignition "github.com/coreos/ignition/v2/config"
	. "github.com/onsi/gomega"
	"sigs.k8s.io/yaml"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/bootdata"
)

// renderWithDisks returns the user-data of a recipe for a VM with a disk that is mounted and
// one that is not.
func renderWithDisks(t *testing.T, name string, disks ...bootdata.Disk) []byte {
	t.Helper()
	templates, data := recipeData(t, name)
	data.Disks = disks
	return render(t, templates, data).UserData
}

func newDisks() []bootdata.Disk {
	return []bootdata.Disk{
		{Name: "data", Device: "/dev/disk/by-id/wwn-0x55254003a6eb0790", Size: 10 << 30, MountPath: "/var/lib/kubelet", FileSystem: "xfs"},
		{Name: "raw", Device: "/dev/disk/by-id/virtio-raw", Size: 10 << 30, FileSystem: "ext4"},
	}
}

func TestRecipesMountDisks(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"kubeadm", "k3s", "rke2"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			var config map[string]any
			g.Expect(yaml.Unmarshal(renderWithDisks(t, name, newDisks()...), &config)).To(Succeed())
			g.Expect(config["fs_setup"]).To(HaveExactElements(HaveKeyWithValue("device", "/dev/disk/by-id/wwn-0x55254003a6eb0790")))
			g.Expect(config["mounts"]).To(HaveExactElements(HaveExactElements("/dev/disk/by-id/wwn-0x55254003a6eb0790", "/var/lib/kubelet", "xfs", "defaults,nofail", "0", "2")))
			config = nil
			g.Expect(yaml.Unmarshal(renderWithDisks(t, name, newDisks()[1]), &config)).To(Succeed())
			g.Expect(config).NotTo(Or(HaveKey("fs_setup"), HaveKey("mounts")))
		})
	}
	for _, name := range []string{"flatcar", "fedora-coreos"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			config, _, err := ignition.Parse(renderWithDisks(t, name, newDisks()...))
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(config.Storage.Filesystems).To(HaveExactElements(And(
				HaveField("Device", "/dev/disk/by-id/wwn-0x55254003a6eb0790"), HaveField("Path", HaveValue(Equal("/var/lib/kubelet"))), HaveField("Format", HaveValue(Equal("xfs"))))))
			g.Expect(config.Systemd.Units).To(ContainElement(HaveField("Name", "var-lib-kubelet.mount")))
			config, _, err = ignition.Parse(renderWithDisks(t, name, newDisks()[1]))
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(config.Storage.Filesystems).To(BeEmpty())
		})
	}
}
