// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers_test

import (
	"testing"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

func withFirmware(c *v1alpha1.ProxmoxNodeClass) {
	c.Spec.MetadataOptions.Type = v1alpha1.MetadataTypeFirmware
}

func TestCheckBootData(t *testing.T) {
	userData := func(text string) func(*testenv.Env) {
		return func(w *testenv.Env) { nodeClassStatusSetUserData(w, text) }
	}
	const rendering = "rendering secret kube-system/templates of spec.metadataOptions.templatesRef: "
	runChecks(t, v1alpha1.ConditionInstanceMetadataOptionsReady, v1alpha1.ReasonMetadataOptionsNotFound, map[string]checkCase{
		"unknown_templates_secret": {class: func(c *v1alpha1.ProxmoxNodeClass) { c.Spec.MetadataOptions.TemplatesRef.Name = "nowhere" },
			want: `reading secret kube-system/nowhere of spec.metadataOptions.templatesRef: secrets "nowhere" not found`},
		"unknown_values_secret": {
			class: func(c *v1alpha1.ProxmoxNodeClass) {
				c.Spec.MetadataOptions.ValuesRef = &v1alpha1.SecretReference{Namespace: c.Spec.MetadataOptions.TemplatesRef.Namespace, Name: "nothing"}
			},
			want: `reading secret kube-system/nothing of spec.metadataOptions.valuesRef: secrets "nothing" not found`,
		},
		"syntax": {
			prepare: userData("#cloud-config\nhostname: {{ .Metadata.Hostname \n"), want: rendering + "user-data: line 3: unclosed action started at user-data:2",
		},
		"unknown_variable": {
			prepare: userData("#cloud-config\n\nhostname: {{ .Metadata.Hostnam }}\n"), want: rendering + `user-data: line 3, column 22: Metadata has no field "Hostnam"`,
		},
		"unused_routes": {
			prepare: userData("version: v1alpha1\nmachine: {type: worker}\n"),
			class: withInterface(v1alpha1.VMInterface{Name: "net0", InterfaceRouting: v1alpha1.InterfaceRouting{
				PolicyRoutes: []v1alpha1.PolicyRoute{{From: "10.0.0.0/8", Table: 1, Priority: 1}},
			}}),
			want: "spec.network.interfaces[0].policyRoutes has no effect: user-data of secret kube-system/templates of spec.metadataOptions.templatesRef " +
				"does not use it, or its format cannot express it; add it to the template as the recipes do, or remove it from the class",
		},
		"firmware": {class: withFirmware, root: true, prepare: userData("variant: flatcar\nversion: 1.1.0\n")},
		"firmware_with_cloud-config": {
			class: withFirmware, root: true, want: "user-data is cloud-config, but spec.metadataOptions.type fwcfg is for Ignition...",
		},
		"cloud-init_drive_with_truncated_key": {class: proxmoxDrive(&v1alpha1.CloudInit{SSHKeys: []string{"ssh-ed25519 AAAAC3NzaC1l me"}}),
			want: "reading spec.metadataOptions.cloudInit.sshKeys[0]: the SSH key is truncated; " +
				"want a line of authorized_keys, like ssh-ed25519 AAAAC3... me@example.com"},
	})
}

func TestCheckKubeletConfiguration(t *testing.T) {
	kubelet := func(k v1alpha1.KubeletConfiguration) func(*v1alpha1.ProxmoxNodeClass) {
		return func(c *v1alpha1.ProxmoxNodeClass) { c.Spec.KubeletConfiguration = &k }
	}
	runChecks(t, v1alpha1.ConditionKubeletConfigurationValid, v1alpha1.ReasonKubeletConfigurationInvalid, map[string]checkCase{
		"unknown_field": {class: kubelet(v1alpha1.KubeletConfiguration{Fields: map[string]string{"maxPod": "50"}}),
			want: "spec.kubeletConfiguration.maxPod: found 50; the kubelet's configuration (kubelet.config.k8s.io/v1beta1, Kubernetes 1.36) has no such field; " +
				"did you mean maxPods?"},
		"negative": {class: kubelet(v1alpha1.KubeletConfiguration{KubeReserved: map[string]string{"memory": "memory - 300 * Gi"}}),
			want: `spec.kubeletConfiguration.kubeReserved.memory: found "memory - 300 * Gi"; ` +
				"it is -319975063552: want 0 or more for a VM with 1 vCPUs and 2Gi of memory; " +
				"want a quantity such as 100m or 512Mi, or a CEL expression over cpu (vCPUs) and memory (bytes), such as 256 * Mi + memory / 50"},
	})
}
