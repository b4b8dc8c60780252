// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

func TestSimulatorTemplate(t *testing.T) {
	t.Parallel()
	for _, release := range []string{"8.4", "9.2"} {
		t.Run(release, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			ctx := testContext(t)
			images := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path != "/tiny.qcow2" {
					http.NotFound(w, r)
					return
				}
				fmt.Fprint(w, "QFI\xfb\x00\x00\x00\x03................\x00\x00\x00\x00\x80\x00\x00\x00")
			}))
			t.Cleanup(images.Close)
			_, c := simulate(t, release)

			image := proxmox.DownloadRequest{Host: "pve1", Storage: "local", Name: "tiny.qcow2", URL: images.URL + "/tiny.qcow2"}
			task, err := c.DownloadImage(ctx, image)
			g.Expect(waitFor(ctx, c, task, err)).To(Succeed())
			task, err = c.DownloadImage(ctx, image)
			g.Expect(waitFor(ctx, c, task, err)).To(MatchError(proxmox.ErrExists))

			request := proxmox.CreateRequest{Host: "pve1", VMID: 1000, Options: map[string]string{
				"name": "ubuntu", "description": "ours", "scsi0": "local-lvm:0,import-from=local:import/tiny.qcow2", "boot": "order=scsi0",
				"bios": "ovmf", "efidisk0": "local-lvm:1,efitype=4m", "tpmstate0": "local-lvm:1,version=v2.0",
			}}
			task, err = c.CreateVM(ctx, request)
			g.Expect(waitFor(ctx, c, task, err)).To(Succeed())
			_, err = c.CreateVM(ctx, request)
			g.Expect(err).To(MatchError(proxmox.ErrExists), "the VMID is taken before the task ends")
			task, err = c.ConvertToTemplate(ctx, "pve1", 1000)
			g.Expect(waitFor(ctx, c, task, err)).To(Succeed())

			config, err := c.VMConfig(ctx, "pve1", 1000)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(config.IsTemplate()).To(BeTrue())
			g.Expect(config.Description()).To(Equal("ours"))
			disk, _ := config.Drives().Boot()
			g.Expect([]any{disk.VolumeID, disk.SizeBytes}).To(Equal([]any{"local-lvm:base-1000-disk-1", int64(2 << 30)}))
		})
	}
}
