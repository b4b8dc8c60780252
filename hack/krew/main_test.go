// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/yaml"
)

func TestManifest(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	sum := strings.Repeat("0a", 32)
	m, err := newManifest("v1.2.3", strings.NewReader(sum+"  karpenter-provider-proxmox_1.2.3_linux_amd64.tar.gz\n"+
		sum+"  kubectl-proxmox_1.2.3_linux_amd64.tar.gz\n"+
		sum+"  kubectl-proxmox_1.2.3_linux_amd64.tar.gz.sbom.json\n"+
		sum+"  kubectl-proxmox_1.2.3_windows_arm64.zip\n"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(len(m.Spec.ShortDescription)).To(BeNumerically("<=", 50), "krew lists it in a table")
	content, err := yaml.Marshal(m)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(string(content)).To(And(
		HavePrefix("apiVersion: krew.googlecontainertools.github.com/v1alpha2\nkind: Plugin\nmetadata:\n  name: proxmox\nspec:\n"),
		HaveSuffix(`  homepage: https://github.com/karpenter-proxmox/karpenter-provider-proxmox
  platforms:
  - bin: kubectl-proxmox
    files:
    - from: kubectl-proxmox
      to: .
    - from: LICENSE
      to: .
    selector:
      matchLabels:
        arch: amd64
        os: linux
    sha256: `+sum+`
    uri: https://github.com/karpenter-proxmox/karpenter-provider-proxmox/releases/download/v1.2.3/kubectl-proxmox_1.2.3_linux_amd64.tar.gz
  - bin: kubectl-proxmox.exe
    files:
    - from: kubectl-proxmox.exe
      to: .
    - from: LICENSE
      to: .
    selector:
      matchLabels:
        arch: arm64
        os: windows
    sha256: `+sum+`
    uri: https://github.com/karpenter-proxmox/karpenter-provider-proxmox/releases/download/v1.2.3/kubectl-proxmox_1.2.3_windows_arm64.zip
  shortDescription: Inspect and operate Karpenter on Proxmox VE
  version: v1.2.3
`)))
	for version, want := range map[string]string{
		"1.2.3":  `found version "1.2.3", want one such as v1.2.3`,
		"v1.2.4": "the checksums list no archive kubectl-proxmox_VERSION_OS_ARCH.tar.gz of v1.2.4",
	} {
		_, err := newManifest(version, strings.NewReader(sum+"  kubectl-proxmox_1.2.3_linux_amd64.tar.gz\n"))
		g.Expect(err).To(MatchError(want))
	}
}
