// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers_test

import (
	"testing"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

func TestCheckTemplate(t *testing.T) {
	runChecks(t, v1alpha1.ConditionInstanceTemplateReady, v1alpha1.ReasonTemplatesNotFound, map[string]checkCase{
		"on_some_hosts": {hosts: 3, zones: []string{"region-1/pve1/9000", "region-1/pve3/9002"},
			unusable: map[string]string{"pve2": `ProxmoxUnmanagedTemplate "ubuntu" is not on this host`}},
		"on_other_hosts_only": {zones: []string{"region-1/pve7/9000"}, want: `region-1/pve1: ProxmoxUnmanagedTemplate "ubuntu" is not on this host`},
		"on_no_host":          {zones: []string{}, want: `ProxmoxUnmanagedTemplate "ubuntu" is on no host yet: not found on any host`},
		"unknown": {class: func(c *v1alpha1.ProxmoxNodeClass) { c.Spec.InstanceTemplateRef.Name = "talos" },
			want: `spec.instanceTemplateRef names ProxmoxUnmanagedTemplate "talos", which does not exist; create it, or set one that is listed by: ` +
				`kubectl get proxmoxunmanagedtemplates`},
		"unknown_managed": {class: func(c *v1alpha1.ProxmoxNodeClass) { c.Spec.InstanceTemplateRef.Kind = "ProxmoxTemplate" },
			want: `spec.instanceTemplateRef names ProxmoxTemplate "ubuntu", which does not exist; create it, or set one that is listed by: ` +
				"kubectl get proxmoxtemplates"},
		"no_boot_disk": {
			scenario: func(s *pvesim.Scenario) {
				for _, guest := range s.Guests {
					delete(guest.Config, "scsi0")
					delete(guest.Config, "boot")
				}
			},
			want: `region-1/pve1: template 9000 cannot be used: the template has no boot disk: ` +
				`its boot order "" names none, and it has none of virtio0, scsi0, sata0, ide0`,
		},
		"unknown_interface": {
			class: func(c *v1alpha1.ProxmoxNodeClass) {
				c.Spec.SecurityGroups = []v1alpha1.SecurityGroup{{Name: "kubernetes", Interface: "net3"}}
			},
			want: "region-1/pve1: template 9000 cannot be used: a security group names interface net3, but neither the template nor spec.network has one of that name",
		},
		"conflicting_snippet": {scenario: both(workerSnippet, setTemplateOption("cicustom", "user=local:snippets/worker.yaml")),
			class: proxmoxDrive(&v1alpha1.CloudInit{User: "ops"}),
			want: "region-1/pve1: template 9000 cannot be used: its cicustom sets user=local:snippets/worker.yaml, " +
				"which replaces the user-data of spec.metadataOptions.cloudInit; " +
				"remove it from the template (qm set TEMPLATE --delete cicustom), or remove the setting from the class"},
	})
}
