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

func TestIgnitionForTheFirmwareNeedsALoginOfRoot(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling())
	found(w, "region-1/pve1/9000")
	userData := func(text string) {
		secret := testenv.Reload(w, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.Name, Name: testenv.TemplatesSecret}})
		secret.Data["user-data"] = []byte(text)
		w.Expect(w.Kube.Update(t.Context(), secret)).To(Succeed())
	}
	userData("variant: flatcar\nversion: 1.1.0\n")
	class := checked(w, w.NewClass(func(c *v1alpha1.ProxmoxNodeClass) { c.Spec.MetadataOptions.Type = v1alpha1.MetadataTypeFirmware }))
	got := class.StatusConditions().Get(v1alpha1.ConditionPrivilegesSufficient)
	w.Expect(got.IsFalse()).To(BeTrue())
	w.Expect(got.Message).To(Equal("region-1: spec.metadataOptions.type fwcfg sets arguments of QEMU, and Proxmox lets only a login of root@pam do that; " +
		"give this region a root login in the cloud config (docs/boot-data.md), or take an image whose Ignition has the platform proxmoxve, and type cdrom"))
	w.Expect(class.Status.SelectedZones).To(BeEmpty(), "nothing is cloned in vain")

	w.Roots = map[string]proxmox.Root{testenv.Region: nil} // that there is one is enough to know
	class = checked(w, class)
	ready := class.StatusConditions().Root()
	w.Expect(ready.IsTrue()).To(BeTrue(), ready.Message)

	userData("#cloud-config\n")
	w.Expect(message(checked(w, class), v1alpha1.ConditionInstanceMetadataOptionsReady)).To(HavePrefix("user-data is cloud-config, but spec.metadataOptions.type fwcfg is for Ignition"))
}
