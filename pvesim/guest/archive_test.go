// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"testing"

	. "github.com/onsi/gomega"
)

func TestCloudInitArchive(t *testing.T) {
	t.Parallel()
	archive := lines(
		`Content-Type: multipart/mixed; boundary="x"`, "MIME-Version: 1.0", "",
		"--x", `Content-Type: text/cloud-config; charset="utf-8"`, "", "#cloud-config", "hostname: first", "write_files:", "  - {path: /a, content: first}", "",
		"--x", "Content-Type: text/cloud-config", "Content-Transfer-Encoding: base64", "",
		"I2Nsb3VkLWNvbmZpZwpob3N0bmFtZTogbGFzdAp3cml0ZV9maWxlczoKICAtIHtwYXRoOiAvYiwg", "Y29udGVudDogbGFzdH0K",
		"--x--", "")
	disk := newDisk(nil)
	system, ok := newGuest(disk, seedWith(t, "i-1", archive)).cloudInit()
	g := NewWithT(t)
	g.Expect(ok).To(BeTrue())
	g.Expect(system.hostname).To(Equal("last"))
	g.Expect(disk.text("/a")).To(Equal("first"))
	g.Expect(disk.text("/b")).To(Equal("last"))
}
