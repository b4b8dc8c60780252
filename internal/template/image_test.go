// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package template_test

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/template"
)

func TestNothingIsDownloadedUntilAPlaceholderIsFilledIn(t *testing.T) {
	t.Parallel()
	source := v1alpha1.SourceImage{URL: "https://example.com/a.qcow2", Checksum: "<checksum>", ChecksumType: "md5"}
	_, err := template.ImageOf(source, "cluster")
	const want = `spec.sourceImage.checksum is the placeholder "<checksum>": put in the md5 sum of the image, or remove checksum and checksumType`
	if err == nil || err.Error() != want {
		t.Errorf("found %v, want %s", err, want)
	}
	source.Checksum = "d41d8cd98f00b204e9800998ecf8427e"
	if _, err := template.ImageOf(source, "cluster"); err != nil {
		t.Error(err)
	}
}

func TestImageNames(t *testing.T) {
	t.Parallel()
	const key = `-[0-9a-f]{24}`
	for name, test := range map[string]struct {
		source v1alpha1.SourceImage
		want   string
		fails  string
	}{
		"as it is called":         {source: v1alpha1.SourceImage{URL: "https://a.example/x", ImageName: "ubuntu-amd64.qcow2"}, want: `^ubuntu-amd64` + key + `\.qcow2$`},
		"from the URL":            {source: v1alpha1.SourceImage{URL: "https://a.example/noble-server-cloudimg-amd64.img"}, want: `^noble-server-cloudimg-amd64` + key + `\.qcow2$`},
		"dots in the name":        {source: v1alpha1.SourceImage{URL: "https://a.example/debian-12.5.raw?mirror=1"}, want: `^debian-12\.5` + key + `\.raw$`},
		"what Proxmox renames":    {source: v1alpha1.SourceImage{URL: "https://a.example/a%20b(1).vmdk"}, want: `^a_b_1` + key + `\.vmdk$`},
		"capital letters":         {source: v1alpha1.SourceImage{URL: "https://a.example/Fedora.QCOW2"}, want: `^Fedora` + key + `\.qcow2$`},
		"nothing before the dot":  {source: v1alpha1.SourceImage{URL: "https://a.example/.qcow2"}, want: `^image` + key + `\.qcow2$`},
		"no extension":            {source: v1alpha1.SourceImage{URL: "https://a.example/latest"}, fails: `imageName is empty, and the last part of url is "latest"`},
		"no path":                 {source: v1alpha1.SourceImage{URL: "https://a.example"}, fails: "set imageName"},
		"a name without a format": {source: v1alpha1.SourceImage{URL: "https://a.example/a.qcow2", ImageName: "ubuntu.iso"}, fails: `spec.sourceImage.imageName is "ubuntu.iso"`},
		"packed":                  {source: v1alpha1.SourceImage{URL: "https://a.example/a.raw.xz", ImageName: "a.raw"}, fails: "ends in .xz: Proxmox unpacks ISO images only"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			image, err := template.ImageOf(test.source, kubeCluster)
			if test.fails != "" {
				g.Expect(err).To(MatchError(ContainSubstring(test.fails)))
				return
			}
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(image.Name).To(MatchRegexp(test.want))
		})
	}
}

func TestAnotherImageHasAnotherName(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	name := func(cluster string, change func(*v1alpha1.SourceImage)) string {
		source := v1alpha1.SourceImage{URL: "https://a.example/a.qcow2", Checksum: "00ff", ChecksumType: "md5"}
		change(&source)
		image, err := template.ImageOf(source, cluster)
		g.Expect(err).NotTo(HaveOccurred())
		return image.Key
	}
	same := name(kubeCluster, func(*v1alpha1.SourceImage) {})
	g.Expect(name(kubeCluster, func(s *v1alpha1.SourceImage) { s.Checksum = "00FF" })).To(Equal(same))
	g.Expect(name(kubeCluster, func(s *v1alpha1.SourceImage) { s.ImageName = "mine.qcow2" })).To(Equal(same), "what it is called does not make it another one")
	g.Expect(name(kubeCluster, func(s *v1alpha1.SourceImage) { s.URL += "?v=2" })).NotTo(Equal(same))
	g.Expect(name(kubeCluster, func(s *v1alpha1.SourceImage) { s.Checksum = "00fe" })).NotTo(Equal(same), "the same address may have new content")
	g.Expect(name("another", func(*v1alpha1.SourceImage) {})).NotTo(Equal(same), "what others downloaded is not ours to delete")
}

func FuzzImageNamesAreWhatProxmoxTakes(f *testing.F) {
	f.Add("https://a.example/noble.img", "")
	f.Add("https://a.example/x", "a b.raw")
	f.Add("https://a.example/%2e%2e/x.qcow2", "../../etc.qcow2")
	f.Fuzz(func(t *testing.T, url, name string) {
		image, err := template.ImageOf(v1alpha1.SourceImage{URL: url, ImageName: name}, kubeCluster)
		if err == nil {
			NewWithT(t).Expect(image.Name).To(MatchRegexp(`^[A-Za-z0-9_.-]+-[0-9a-f]{24}\.(qcow2|raw|vmdk)$`))
		}
	})
}
