// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package vmconfig_test

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/vmconfig"
)

func TestCheckTemplateOverridingSnippet(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	template := proxmox.VMConfig{Options: map[string]string{
		"scsi0": "local-lvm:base-9000-disk-0,size=3G", "boot": "order=scsi0", "net0": "virtio=BC:24:11:00:00:01,bridge=vmbr0",
		"cicustom": "network=local:snippets/n.yaml,user=local:snippets/u.yaml",
	}}
	class := &v1alpha1.ProxmoxNodeClass{}
	class.Spec.MetadataOptions.Type = v1alpha1.MetadataTypeCloudInit
	g.Expect(vmconfig.CheckTemplate(template, class)).To(Succeed())
	class.Spec.Network = &v1alpha1.Network{}
	g.Expect(vmconfig.CheckTemplate(template, class)).To(MatchError(HavePrefix("its cicustom sets network=local:snippets/n.yaml, which replaces the addresses of spec.network; remove it")))
	class.Spec.Network = nil
	class.Spec.MetadataOptions.CloudInit = &v1alpha1.CloudInit{SSHKeysRef: &v1alpha1.SecretReference{Namespace: "a", Name: "b"}}
	g.Expect(vmconfig.CheckTemplate(template, class)).To(MatchError(HavePrefix("its cicustom sets user=local:snippets/u.yaml, which replaces the user-data of spec.metadataOptions.cloudInit; remove it")))
}
