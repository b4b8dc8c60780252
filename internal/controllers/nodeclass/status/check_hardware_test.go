// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package status_test

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

func withVersion(release string) func(*pvesim.Scenario) {
	return func(s *pvesim.Scenario) { s.Version = release }
}

func hardware(h v1alpha1.Hardware) func(*v1alpha1.ProxmoxNodeClass) {
	return func(c *v1alpha1.ProxmoxNodeClass) { c.Spec.Hardware = &h }
}

func TestCheckHardware(t *testing.T) {
	t.Parallel()
	tdx := &v1alpha1.ConfidentialComputing{IntelTDX: &v1alpha1.IntelTDX{}}
	for name, test := range map[string]struct {
		release   string
		change    func(*v1alpha1.ProxmoxNodeClass)
		root      bool
		condition string
		want      string // empty if the class is ready
	}{
		"KSM_on_9.2": {release: "9.2", change: hardware(v1alpha1.Hardware{KSM: new(false)})},
		"KSM_on_8.4": {
			release: "8.4", change: hardware(v1alpha1.Hardware{KSM: new(false)}), condition: v1alpha1.ConditionHardwareReady,
			want: "spec.hardware.ksm false needs Proxmox VE 9.1 or newer, this is 8.4; upgrade it, remove the field, or set spec.region to a newer cluster",
		},
		"TDX_on_8.4": {
			release: "8.4", change: hardware(v1alpha1.Hardware{ConfidentialComputing: tdx}), root: true, condition: v1alpha1.ConditionHardwareReady,
			want: "spec.hardware.confidentialComputing.intelTDX needs Proxmox VE 9.1 or newer, this is 8.4",
		},
		"TDX_on_9.2": {release: "9.2", change: hardware(v1alpha1.Hardware{ConfidentialComputing: tdx}), root: true},
		"TDX_without_root": {
			release: "9.2", change: hardware(v1alpha1.Hardware{ConfidentialComputing: tdx}), condition: v1alpha1.ConditionPrivilegesSufficient,
			want: "spec.hardware.confidentialComputing sets intel-tdx, which only root@pam may do; add a root login",
		},
		"RNG_on_8.4": {release: "8.4", change: hardware(v1alpha1.Hardware{RNG: &v1alpha1.RNG{Source: "urandom"}})},
		"hwrng": {
			release: "9.2", change: hardware(v1alpha1.Hardware{RNG: &v1alpha1.RNG{Source: "hwrng"}}), condition: v1alpha1.ConditionPrivilegesSufficient,
			want: "lacks Mapping.Use on /mapping/hwrng",
		},
		"startup": {
			release: "9.2", change: hardware(v1alpha1.Hardware{Startup: &v1alpha1.StartupOrder{Order: new(int32(1))}}), condition: v1alpha1.ConditionPrivilegesSufficient,
			want: "lacks Sys.Modify on /",
		},
		"PCI": {
			release: "9.2", change: hardware(v1alpha1.Hardware{PCI: []v1alpha1.PCIDevice{{Mapping: "gpu"}}}), condition: v1alpha1.ConditionPrivilegesSufficient,
			want: "lacks Mapping.Use on /mapping/pci/gpu",
		},
		"TPM_storage": {
			release: "9.2", change: hardware(v1alpha1.Hardware{TPM: &v1alpha1.TPMState{Version: "v2.0", Storage: "nowhere"}}), condition: v1alpha1.ConditionHardwareReady,
			want: `spec.hardware.tpm.storage "nowhere" is not on this host, which has`,
		},
		"description": {
			release: "9.2", change: func(c *v1alpha1.ProxmoxNodeClass) { c.Spec.Description = "{{ .Pool }}" }, condition: v1alpha1.ConditionHardwareReady,
			want: `spec.description: line 1, column 3: Metadata has no field "Pool"`,
		},
		"description_with_comment": {
			release: "9.2", change: func(c *v1alpha1.ProxmoxNodeClass) { c.Spec.Description = "<!-- x" }, condition: v1alpha1.ConditionHardwareReady,
			want: "comments are reserved for the ownership mark",
		},
		"tags": {release: "9.2", change: func(c *v1alpha1.ProxmoxNodeClass) { c.Spec.Tags = []string{"pool-{{ .NodePool }}"} }},
		"tag_not_valid": {
			release: "9.2", change: func(c *v1alpha1.ProxmoxNodeClass) { c.Spec.Tags = []string{"{{ .Region }}/{{ .Zone }}"} }, condition: v1alpha1.ConditionTagsAllowed,
			want: `spec.tags[0] "{{ .Region }}/{{ .Zone }}" renders to "region-1/pve1", which is not a tag`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := testenv.New(t, testenv.NoPolling(), testenv.Scenario(withVersion(test.release)))
			setTemplateZones(w, "region-1/pve1/9000")
			if test.root {
				w.Roots = map[string]proxmox.Root{testenv.Region: nil}
			}
			class := reconcileClass(w, w.NewClass(test.change))
			if test.want == "" {
				w.Expect(class.StatusConditions().Root().IsTrue()).To(BeTrue(), class.StatusConditions().Root().Message)
				return
			}
			w.Expect(class.StatusConditions().Get(test.condition).IsFalse()).To(BeTrue())
			w.Expect(conditionMessage(class, test.condition)).To(ContainSubstring(test.want))
			w.Expect(class.Status.UnusableZones).To(ConsistOf(HaveField("Reason", ContainSubstring(test.want))))
		})
	}
}

func TestCheckUSB(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling(), testenv.Hosts(2), testenv.Scenario(withDirectories(
		pvesim.Mapping{Kind: "usb", ID: "dongle", Map: []string{"node=pve2,id=1234:5678"}})))
	setTemplateZones(w, "region-1/pve1/9000", "region-1/pve2/9001")
	class := reconcileClass(w, w.NewClass(hardware(v1alpha1.Hardware{USB: []v1alpha1.USBDevice{{Mapping: "dongle"}}})))
	w.Expect(class.StatusConditions().Get(v1alpha1.ConditionHardwareReady).IsUnknown()).To(BeTrue(), "mappings are read once a class refers to them")
	w.Refresh()
	class = reconcileClass(w, class)
	w.Expect(class.Status.SelectedZones).To(Equal([]string{"region-1/pve2/9001"}))
	w.Expect(class.Status.UnusableZones).To(ConsistOf(v1alpha1.UnusableZone{
		Zone:   "region-1/pve1",
		Reason: `spec.hardware.usb[0].mapping: USB mapping "dongle" has no device on this host; add one (Datacenter, Resource Mappings)`,
	}))
}
