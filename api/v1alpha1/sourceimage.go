// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"fmt"
	"net/url"
	"path"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// SourceImage is a disk image that Proxmox downloads, or one that exists on its hosts. Exactly one of url, urls, talos and
// volume is set.
// +kubebuilder:validation:XValidation:rule="[has(self.url), has(self.urls), has(self.talos), has(self.volume)].filter(isSet, isSet).size() == 1",message="set exactly one of url, urls, talos and volume"
// +kubebuilder:validation:XValidation:rule="has(self.checksum) == has(self.checksumType)",message="checksum and checksumType belong together: set both or neither"
// +kubebuilder:validation:XValidation:rule="!has(self.checksum) || !has(self.checksumURL)",message="set checksum or checksumURL, not both"
// +kubebuilder:validation:XValidation:rule="!has(self.volume) || !(has(self.imageName) || has(self.checksum) || has(self.checksumURL))",message="imageName, checksum and checksumURL are for images that are downloaded: remove them, or use url instead of volume"
// +kubebuilder:validation:XValidation:rule="!has(self.talos) || !has(self.imageName)",message="imageName is not for talos, whose images have a name: remove it"
// +kubebuilder:validation:XValidation:rule="!has(self.checksum) || !has(self.checksumType) || self.checksum.matches('^<.*>$') || (self.checksum.matches('^[0-9a-fA-F]+$') && size(self.checksum) == {'md5': 32, 'sha1': 40, 'sha224': 56, 'sha256': 64, 'sha384': 96, 'sha512': 128}[self.checksumType])",message="checksum must have as many hexadecimal digits as checksumType requires, without a prefix: md5 32, sha1 40, sha224 56, sha256 64, sha384 96, sha512 128"
type SourceImage struct {
	// url is the http or https URL of the image.
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:XValidation:rule="isURL(self) && url(self).getScheme() in ['http', 'https'] && url(self).getHostname() != '' && !self.matches('[[:space:]]')",message="url must be an http or https URL, like https://cloud-images.ubuntu.com/noble/current/noble-server-cloudimg-amd64.img"
	// +optional
	URL string `json:"url,omitempty"`

	// urls are http or https URLs of mirrors that serve the same image. Each host tries them in this order until a download
	// succeeds. If checksum or checksumURL is set, a change of urls does not create a new template.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=2048
	// +kubebuilder:validation:XValidation:rule="self.all(u, isURL(u) && url(u).getScheme() in ['http', 'https'] && url(u).getHostname() != '' && !u.matches('[[:space:]]'))",message="each of urls must be an http or https URL, like https://cloud-images.ubuntu.com/noble/current/noble-server-cloudimg-amd64.img"
	// +kubebuilder:validation:XValidation:rule="self.all(u, self.exists_one(other, other == u))",message="urls contains a URL twice"
	// +listType=atomic
	// +optional
	URLs []string `json:"urls,omitempty"`

	// talos is an image of the Talos Image Factory.
	// +optional
	Talos *TalosImage `json:"talos,omitempty"`

	// volume is an image that exists on a storage of the hosts, for example local:import/debian-13.qcow2. It must have the
	// content type import. The provider does not download or delete it.
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z][A-Za-z0-9_.-]*:import/[A-Za-z0-9][A-Za-z0-9_.+-]*[.](qcow2|raw|vmdk)$')",message="volume must be an image with content type import and the extension qcow2, raw or vmdk, like local:import/debian-13.qcow2; list them with: pvesm list local --content import"
	// +optional
	Volume string `json:"volume,omitempty"`

	// imageName is the name of the downloaded file, to which the provider adds a hash of the URL. Proxmox derives the image
	// format from its extension. The default is the last part of the URL.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9][A-Za-z0-9_.-]*[.][A-Za-z0-9]+$')",message="imageName must be a plain file name with an extension that identifies the format, like ubuntu-amd64.qcow2"
	// +optional
	ImageName string `json:"imageName,omitempty"`

	// checksum is verified by Proxmox after the download, in hexadecimal digits. A placeholder like <checksum>, as in the
	// documentation, is accepted, but nothing is downloaded until you replace it. The condition reports this.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	// +optional
	Checksum string `json:"checksum,omitempty"`

	// checksumType is the algorithm of the checksum: md5, sha1, sha224, sha256, sha384 or sha512.
	// +kubebuilder:validation:Enum=md5;sha1;sha224;sha256;sha384;sha512
	// +optional
	ChecksumType string `json:"checksumType,omitempty"`

	// checksumURL is the http or https URL of a file with checksums, such as SHA256SUMS, that lists the last part of the
	// image's URL. The provider reads it every 6 hours. If it lists another checksum, a new template is created and Nodes
	// drift.
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:XValidation:rule="isURL(self) && url(self).getScheme() in ['http', 'https'] && url(self).getHostname() != '' && !self.matches('[[:space:]]')",message="checksumURL must be an http or https URL, like https://cloud-images.ubuntu.com/noble/current/SHA256SUMS"
	// +optional
	ChecksumURL string `json:"checksumURL,omitempty"`
}

// TalosImage is a disk image for the platform nocloud, which the Talos Image Factory builds.
type TalosImage struct {
	// schematic is the ID that the Image Factory returned for your system extensions and kernel arguments.
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self.matches('^[0-9a-f]{64}$')",message="schematic must be an ID of the Image Factory: 64 hexadecimal digits in lower case"
	// +required
	Schematic string `json:"schematic,omitempty"`

	// version is the Talos version, for example v1.11.3.
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^v[0-9]+[.][0-9]+[.][0-9]+(-(alpha|beta|rc)[.][0-9]+)?$')",message="version must be a Talos version that starts with v, like v1.11.3"
	// +required
	Version string `json:"version,omitempty"`

	// arch is the CPU architecture: amd64 or arm64. The default is amd64.
	// +kubebuilder:default=amd64
	// +kubebuilder:validation:Enum=amd64;arm64
	// +optional
	Arch string `json:"arch,omitempty"`

	// factoryURL is the URL of the Image Factory, if you run your own. A change does not create a new template.
	// +kubebuilder:default="https://factory.talos.dev"
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="isURL(self) && url(self).getScheme() in ['http', 'https'] && url(self).getHostname() != '' && !self.matches('[[:space:]?#]')",message="factoryURL must be an http or https URL without query, like https://factory.talos.dev"
	// +optional
	FactoryURL string `json:"factoryURL,omitempty" hash:"ignore"`
}

// FileName returns the file name of the image at the Image Factory.
func (t TalosImage) FileName() string {
	return "nocloud-" + t.Arch + ".qcow2"
}

// URL returns the URL of the image. The format is qcow2 because the raw image is compressed, and Proxmox cannot decompress
// disk images.
func (t TalosImage) URL() string {
	return strings.TrimRight(t.FactoryURL, "/") + "/image/" + t.Schematic + "/" + t.Version + "/" + t.FileName()
}

// Problem returns why the image cannot be downloaded although the API server accepted it, or "" if it can.
func (s SourceImage) Problem() string {
	if !strings.HasPrefix(s.Checksum, "<") {
		return ""
	}

	return fmt.Sprintf("spec.sourceImage.checksum is the placeholder %q: put in the %s sum of the image, or remove checksum and checksumType",
		s.Checksum, s.ChecksumType)
}

// DownloadURLs returns the URLs that the image is downloaded from, in the order in which they are tried. There is none if
// the image is a volume.
func (s SourceImage) DownloadURLs() []string {
	switch {
	case s.Talos != nil:
		return []string{s.Talos.URL()}
	case s.URL != "":
		return []string{s.URL}
	}

	return s.URLs
}

// FileName returns the name of the image that checksumURL lists, or "" if there is none.
func (s SourceImage) FileName() string {
	for _, location := range s.DownloadURLs() {
		if parsed, err := url.Parse(location); err == nil {
			return path.Base(parsed.Path)
		}
	}

	return ""
}

// String returns where the image comes from, without the passwords of URLs.
func (s SourceImage) String() string {
	if s.Volume != "" {
		return s.Volume
	}

	var locations []string

	for _, location := range s.DownloadURLs() {
		if parsed, err := url.Parse(location); err == nil {
			location = parsed.Redacted()
		}

		locations = append(locations, location)
	}

	return strings.Join(locations, ", ")
}

// content returns the fields that identify the content of the image. With a checksum, it does not matter which mirror serves
// the image or where the checksum was read from.
func (s SourceImage) content() SourceImage {
	if s.Checksum != "" {
		s.URLs, s.ChecksumURL = nil, ""
	}

	return s
}

// ResolvedChecksum is the checksum of an image that was read from checksumURL.
type ResolvedChecksum struct {
	// url is the checksumURL that was read.
	// +required
	URL string `json:"url,omitempty"`

	// fileName is the name of the image in the file.
	// +required
	FileName string `json:"fileName,omitempty"`

	// type is the algorithm: md5, sha1, sha224, sha256, sha384 or sha512.
	// +required
	Type string `json:"type,omitempty"`

	// value is the checksum in hexadecimal digits.
	// +required
	Value string `json:"value,omitempty"`

	// lastCheckTime is when the file was last read.
	// +required
	LastCheckTime metav1.Time `json:"lastCheckTime,omitzero"`
}

// Source returns the image of the spec. If it has a checksumURL, the checksum is the one that was read from it, and empty
// if it has not been read yet.
func (in *ProxmoxTemplate) Source() SourceImage {
	source := in.Spec.SourceImage
	resolved := in.Status.Checksum

	if source.ChecksumURL != "" && resolved != nil && resolved.URL == source.ChecksumURL && resolved.FileName == source.FileName() {
		source.Checksum, source.ChecksumType = resolved.Value, resolved.Type
	}

	return source
}
