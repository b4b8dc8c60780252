// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package status_test

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

func TestCheckRootLoginForFirmware(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling())
	setTemplateZones(w, "region-1/pve1/9000")
	userData := func(text string) {
		secret := testenv.Reload(w, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.Name, Name: testenv.TemplatesSecret}})
		secret.Data["user-data"] = []byte(text)
		w.Expect(w.Kube.Update(t.Context(), secret)).To(Succeed())
	}
	userData("variant: flatcar\nversion: 1.1.0\n")
	class := reconcileClass(w, w.NewClass(func(c *v1alpha1.ProxmoxNodeClass) { c.Spec.MetadataOptions.Type = v1alpha1.MetadataTypeFirmware }))
	got := class.StatusConditions().Get(v1alpha1.ConditionPrivilegesSufficient)
	w.Expect(got.IsFalse()).To(BeTrue())
	w.Expect(got.Message).To(Equal("region-1: spec.metadataOptions.type fwcfg sets QEMU arguments, which only root@pam may do; " +
		"add a root login for this region to the cloud config (docs/boot-data.md), or use type cdrom with an image whose Ignition supports the platform proxmoxve"))
	w.Expect(class.Status.SelectedZones).To(BeEmpty(), "no VM is cloned")

	w.Roots = map[string]proxmox.Root{testenv.Region: nil} // the checker only needs to know that one exists
	class = reconcileClass(w, class)
	ready := class.StatusConditions().Root()
	w.Expect(ready.IsTrue()).To(BeTrue(), ready.Message)

	userData("#cloud-config\n")
	w.Expect(conditionMessage(reconcileClass(w, class), v1alpha1.ConditionInstanceMetadataOptionsReady)).To(HavePrefix("user-data is cloud-config, but spec.metadataOptions.type fwcfg is for Ignition"))
}
