// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package template_test

import (
	"testing"

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
