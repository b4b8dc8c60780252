// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package nodeclass

import (
	"fmt"
	"slices"
	"strings"

	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/poll"
)

// checkHardware checks whether the Host supports spec.hardware. PCI devices are not
// checked here: how many are free changes all the time, and offerings depend on it.
func checkHardware(z zone) *problem {
	if p := checkDescription(z); p != nil {
		return p
	}
	h := z.class.Spec.Hardware
	if h == nil {
		return nil
	}
	if p := checkHardwareVersion(z, *h); p != nil {
		return p
	}
	if h.TPM != nil && h.TPM.Storage != "" {
		row, ok := z.storageRow(h.TPM.Storage)
		switch {
		case !ok:
			return z.hostProblem("spec.hardware.tpm.storage %q is not on this host, which has %s", h.TPM.Storage, strings.Join(z.snapshot.StoragesOf(z.host), ", "))
		case !slices.Contains(row.Content, "images"):
			return z.hostProblem("spec.hardware.tpm.storage %q has the content types %s, but not images", h.TPM.Storage, strings.Join(row.Content, ","))
		}
	}
	return checkUSB(z, h.USB)
}

// checkHardwareVersion checks whether the Cluster's release has the options.
func checkHardwareVersion(z zone, h v1alpha1.Hardware) *problem {
	confidential := h.ConfidentialComputing
	for _, option := range []struct {
		field        string
		value        any
		set          bool
		major, minor int
	}{
		{"rng.source", rngSource(h), h.RNG != nil, 8, 4},
		{"ksm", ksm(h), h.KSM != nil, 9, 1},
		{"confidentialComputing.intelTDX", "", confidential != nil && confidential.IntelTDX != nil, 9, 1},
	} {
		if !option.set || z.snapshot.Version.AtLeast(option.major, option.minor) {
			continue
		}
		field := strings.TrimSpace(fmt.Sprintf("spec.hardware.%s %v", option.field, option.value))
		return z.regionProblem("%s needs Proxmox VE %d.%d or newer, this is %s; upgrade it, remove the field, or set spec.region to a newer cluster",
			field, option.major, option.minor, z.snapshot.Version.Release)
	}
	return nil
}

func rngSource(h v1alpha1.Hardware) string {
	if h.RNG == nil {
		return ""
	}
	return h.RNG.Source
}

func ksm(h v1alpha1.Hardware) bool { return h.KSM != nil && *h.KSM }

// checkUSB checks whether the devices are mapped on the Host. Proxmox accepts any name,
// and the VM then fails to start.
func checkUSB(z zone, devices []v1alpha1.USBDevice) *problem {
	if len(devices) == 0 {
		return nil
	}
	known := z.facts(poll.FactUSB).USB
	if known == nil {
		p := z.regionProblem("the USB mappings have not been read yet")
		p.unknown = true
		return p
	}
	for n, device := range devices {
		mapping, exists := known[device.Mapping]
		if !exists {
			return z.regionProblem("spec.hardware.usb[%d].mapping: USB mapping %q does not exist; add it (Datacenter, Resource Mappings)", n, device.Mapping)
		}
		if !slices.Contains(mapping.Hosts, z.host) {
			return z.hostProblem("spec.hardware.usb[%d].mapping: USB mapping %q has no device on this host; add one (Datacenter, Resource Mappings)", n, device.Mapping)
		}
	}
	return nil
}

// checkDescription renders the description of a sample VM.
func checkDescription(z zone) *problem {
	claim, in := z.sample()
	if _, err := instance.RenderDescription(claim, z.class, in); err != nil {
		return &problem{message: err.Error(), reason: v1alpha1.ReasonTextInvalid}
	}
	return nil
}

// sample returns a VM in the zone as far as it is known before there is one.
func (z zone) sample() (*karpv1.NodeClaim, instance.Intent) {
	claim := &karpv1.NodeClaim{}
	claim.Name = "sample"
	claim.Labels = map[string]string{karpv1.NodePoolLabelKey: "sample"}
	return claim, instance.Intent{Region: z.region, Host: z.host, VMID: v1alpha1.MinVMID, InstanceType: "sample"}
}
