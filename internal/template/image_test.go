// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package template_test

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/template"
)

func TestNewImage(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const key = `-[0-9a-f]{24}`
	for name, test := range map[string]struct {
		source v1alpha1.SourceImage
		want   string
		fails  string
	}{
		"image_name":                     {source: v1alpha1.SourceImage{URL: "https://a.example/x", ImageName: "ubuntu-amd64.qcow2"}, want: `^ubuntu-amd64` + key + `\.qcow2$`},
		"name_in_URL":                    {source: v1alpha1.SourceImage{URL: "https://a.example/noble-server-cloudimg-amd64.img"}, want: `^noble-server-cloudimg-amd64` + key + `\.qcow2$`},
		"dots_in_name":                   {source: v1alpha1.SourceImage{URL: "https://a.example/debian-12.5.raw?mirror=1"}, want: `^debian-12\.5` + key + `\.raw$`},
		"characters_replaced_by_Proxmox": {source: v1alpha1.SourceImage{URL: "https://a.example/a%20b(1).vmdk"}, want: `^a_b_1` + key + `\.vmdk$`},
		"uppercase_extension":            {source: v1alpha1.SourceImage{URL: "https://a.example/Fedora.QCOW2"}, want: `^Fedora` + key + `\.qcow2$`},
		"extension_only":                 {source: v1alpha1.SourceImage{URL: "https://a.example/.qcow2"}, want: `^image` + key + `\.qcow2$`},
		"no_extension":                   {source: v1alpha1.SourceImage{URL: "https://a.example/latest"}, fails: `imageName is empty, and the last part of url is "latest"`},
		"no_path":                        {source: v1alpha1.SourceImage{URL: "https://a.example"}, fails: "set imageName"},
		"unsupported_extension":          {source: v1alpha1.SourceImage{URL: "https://a.example/a.qcow2", ImageName: "ubuntu.iso"}, fails: `spec.sourceImage.imageName is "ubuntu.iso"`},
		"mirrors":                        {source: v1alpha1.SourceImage{URLs: []string{"https://a.example/a.raw", "https://b.example/b.raw"}}, want: `^a` + key + `\.raw$`},
		"compressed_mirror":              {source: v1alpha1.SourceImage{URLs: []string{"https://a.example/a.raw", "https://b.example/a.raw.zst"}}, fails: "spec.sourceImage.urls[1] ends in .zst: Proxmox decompresses ISO images only"},
		"mirrors_of_other_names":         {source: v1alpha1.SourceImage{URLs: []string{"https://a.example/a.raw", "https://b.example/b.raw"}, ChecksumURL: "https://a.example/MD5SUMS"}, fails: `spec.sourceImage.urls[0] ends in "a.raw", and spec.sourceImage.urls[1] in "b.raw": with checksumURL`},
		"checksum_not_read":              {source: v1alpha1.SourceImage{URL: "https://a.example/a.raw", ChecksumURL: "https://a.example/MD5SUMS"}, fails: "spec.sourceImage.checksumURL has not been read yet"},
		"volume":                         {source: v1alpha1.SourceImage{Volume: "local:import/debian-13.qcow2"}, want: `^debian-13\.qcow2$`},
		"Talos":                          {source: v1alpha1.SourceImage{Talos: &v1alpha1.TalosImage{Schematic: "12", Version: "v1.11.3", Arch: "arm64"}}, want: `^talos-v1\.11\.3-nocloud-arm64` + key + `\.qcow2$`},
		"checksum": {source: v1alpha1.SourceImage{URL: "https://a.example/a.raw", Checksum: "d41d8cd98f00b204e9800998ecf8427e", ChecksumType: "md5"},
			want: `^a` + key + `\.raw$`},
		"placeholder_checksum": {source: v1alpha1.SourceImage{URL: "https://a.example/a.raw", Checksum: "<checksum>", ChecksumType: "md5"},
			fails: `spec.sourceImage.checksum is the placeholder "<checksum>": put in the md5 sum of the image, or remove checksum and checksumType`},
		"none": {fails: "spec.sourceImage has no image: set url, urls, talos or volume"},
		"compressed": {source: v1alpha1.SourceImage{URL: "https://a.example/a.raw.xz", ImageName: "a.raw"},
			fails: "ends in .xz: Proxmox decompresses ISO images only"},
	} {
		image, err := template.NewImage(test.source, kubeCluster)
		if test.fails != "" {
			g.Expect(err).To(MatchError(ContainSubstring(test.fails)), name)
			continue
		}
		g.Expect(err).NotTo(HaveOccurred(), name)
		g.Expect(image.Name).To(MatchRegexp(test.want), name)
	}
}

func TestNewImageKey(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	key := func(cluster string, change func(*v1alpha1.SourceImage)) string {
		source := v1alpha1.SourceImage{URL: "https://a.example/a.qcow2", Checksum: "00ff", ChecksumType: "md5"}
		change(&source)
		image, err := template.NewImage(source, cluster)
		g.Expect(err).NotTo(HaveOccurred())
		return image.Key
	}
	same := key(kubeCluster, func(*v1alpha1.SourceImage) {})
	g.Expect(key(kubeCluster, func(s *v1alpha1.SourceImage) { s.Checksum = "00FF" })).To(Equal(same))
	g.Expect(key(kubeCluster, func(s *v1alpha1.SourceImage) { s.ImageName = "mine.qcow2" })).To(Equal(same), "the name is not part of the key")
	g.Expect(key(kubeCluster, func(s *v1alpha1.SourceImage) { s.URL += "?v=2" })).NotTo(Equal(same))
	g.Expect(key(kubeCluster, func(s *v1alpha1.SourceImage) { s.Checksum = "00fe" })).NotTo(Equal(same), "the same URL may serve new content")
	mirrors := func(s *v1alpha1.SourceImage) {
		s.URL, s.URLs = "", []string{"https://b.example/a.qcow2", "https://c.example/a.qcow2"}
	}
	g.Expect(key(kubeCluster, func(s *v1alpha1.SourceImage) {
		mirrors(s)
		s.URLs = s.URLs[1:]
	})).To(Equal(key(kubeCluster, mirrors)), "with a checksum, all mirrors have the same image")
	g.Expect(key("another", func(*v1alpha1.SourceImage) {})).NotTo(Equal(same), "images of other clusters are not deleted")
}
