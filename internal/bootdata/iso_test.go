// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package bootdata_test

import (
	"bytes"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/diskfs/go-diskfs/backend/file"
	"github.com/diskfs/go-diskfs/filesystem/iso9660"
	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/bootdata"
)

// readISO reads an image with an independent library.
func readISO(t *testing.T, image []byte) (label string, files map[string]string) {
	t.Helper()
	g := NewWithT(t)
	opened, err := fstest.MapFS{"image": {Data: image}}.Open("image")
	g.Expect(err).NotTo(HaveOccurred())
	disc, err := iso9660.Read(file.New(opened, true), int64(len(image)), 0, 2048)
	g.Expect(err).NotTo(HaveOccurred())
	entries, err := disc.ReadDir(".")
	g.Expect(err).NotTo(HaveOccurred())
	files = map[string]string{}
	for _, entry := range entries {
		content, err := disc.ReadFile(entry.Name())
		g.Expect(err).NotTo(HaveOccurred())
		files[entry.Name()] = string(content)
	}
	return strings.TrimRight(disc.Label(), " "), files
}

// withoutRockRidge hides the Rock Ridge entries, so readers fall back to Joliet.
func withoutRockRidge(image []byte) []byte {
	return bytes.Replace(image, []byte("SP\x07\x01\xbe\xef"), []byte("XX\x07\x01\xbe\xef"), 1)
}

func TestISO(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	files := bootdata.Files{
		UserData: []byte("#cloud-config\n"), MetaData: []byte("instance-id: x\n"),
		NetworkConfig: bytes.Repeat([]byte("n"), 2048), VendorData: bytes.Repeat([]byte("v"), 2049),
	}
	image, err := files.ISO()
	g.Expect(err).NotTo(HaveOccurred())
	want := map[string]string{
		"user-data": string(files.UserData), "meta-data": string(files.MetaData),
		"network-config": string(files.NetworkConfig), "vendor-data": string(files.VendorData),
	}
	for name, variant := range map[string][]byte{"Rock Ridge": image, "Joliet": withoutRockRidge(image)} {
		label, got := readISO(t, variant)
		g.Expect(label).To(Equal("cidata"), name)
		g.Expect(got).To(Equal(want), name)
	}
	// 25 sectors of structure, then 1, 1, 1 and 2 sectors of files.
	g.Expect(image).To(HaveLen((25 + 5) * 2048))
	again, err := files.ISO()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(bytes.Equal(image, again)).To(BeTrue(), "deterministic")
}

func TestISOEmptyFiles(t *testing.T) {
	t.Parallel()
	image, err := bootdata.Files{}.ISO()
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	_, got := readISO(t, image)
	NewWithT(t).Expect(got).To(Equal(map[string]string{"user-data": "", "meta-data": ""}), "cloud-init requires these two")
}

func TestISOTooLarge(t *testing.T) {
	t.Parallel()
	_, err := bootdata.Files{UserData: make([]byte, bootdata.MaxTotalBytes+1)}.ISO()
	NewWithT(t).Expect(err).To(MatchError(ContainSubstring("packing user-data: 3145729 bytes, the limit is 3145728")))
}

func FuzzISO(f *testing.F) {
	f.Add([]byte("#cloud-config"), []byte("x"), []byte(nil), bytes.Repeat([]byte{0}, 5000))
	f.Fuzz(func(t *testing.T, user, meta, network, vendor []byte) {
		image, err := bootdata.Files{UserData: user, MetaData: meta, NetworkConfig: network, VendorData: vendor}.ISO()
		if err != nil {
			t.Fatal(err)
		}
		want := map[string]string{"user-data": string(user), "meta-data": string(meta)}
		if len(network) > 0 {
			want["network-config"] = string(network)
		}
		if len(vendor) > 0 {
			want["vendor-data"] = string(vendor)
		}
		label, got := readISO(t, image)
		NewWithT(t).Expect(label).To(Equal(bootdata.VolumeID))
		NewWithT(t).Expect(got).To(Equal(want))
	})
}
