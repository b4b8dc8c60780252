// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/cpuset"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/network"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/vmconfig"
)

// Intent is the plan of a launch. Core stores it on the Claim together with the providerID,
// before the first request to Proxmox, so a restarted controller resumes the launch. It
// contains the decision and not its inputs: a changed catalog or NodeClass does not change
// a launch in progress.
type Intent struct {
	// ClaimUID is the Claim that was planned.
	ClaimUID     types.UID `json:"claim"`
	Region       string    `json:"region"`
	Host         string    `json:"host"`
	VMID         int       `json:"vmid"`
	TemplateHost string    `json:"templateHost"`
	TemplateID   int       `json:"template"`
	// ImageID is the Template's generation, for drift.
	ImageID      string `json:"image,omitempty"`
	InstanceType string `json:"type"`
	CapacityType string `json:"capacityType"`
	Cores        int    `json:"cores"`
	MemoryMiB    int    `json:"memoryMiB"`
	DiskBytes    int64  `json:"disk"`
	// Price of the offering, for the VM's notes.
	Price float64 `json:"price,omitempty"`
	// FullClone copies the Template's disk to Storage.
	FullClone bool   `json:"full,omitempty"`
	Storage   string `json:"storage"`
	// Disks besides the boot disk, each with the Storage that was chosen.
	Disks        []v1alpha1.Disk `json:"disks,omitempty"`
	ResourcePool string          `json:"pool,omitempty"`
	// HA is nil if the VM is not in HA.
	HA *v1alpha1.HighAvailability `json:"ha,omitempty"`
	// ISOStorage is the storage of the boot drive; empty if the VM has none.
	ISOStorage string `json:"isoStorage,omitempty"`
	// Firmware: the file there is not a drive but Ignition, passed by QEMU's fw_cfg.
	Firmware bool `json:"firmware,omitempty"`
	// MACs by interface, chosen now so the boot drive can be made during the clone.
	MACs map[string]string `json:"macs,omitempty"`
	// Network holds the addresses of the interfaces.
	Network network.Assignment `json:"network,omitzero"`
	// Devices are PCI mappings, including those of the Template.
	Devices []string  `json:"devices,omitempty"`
	Time    time.Time `json:"time"`
	// Binding to cells and cores of the Host; nil if the VM is not bound.
	Binding *Binding `json:"binding,omitempty"`
	// Machine is the name of the class's machine that the VM is; empty if the class has none.
	Machine string `json:"machine,omitempty"`
	// Retained are the volumes of the Disks that are kept for the machine, by name.
	Retained map[string]string `json:"retained,omitempty"`
	// Parked intents reserve a VMID but no capacity: they wait for it.
	Parked bool `json:"parked,omitempty"`
	// Resources of the Node of a Claim that is or was parked; nil for others. They are written to
	// the Claim's status when there is capacity: pods would wait for those of a parked Claim.
	Resources *NodeResources `json:"resources,omitempty"`
}

// NodeResources are the resources of the Node that a Claim becomes.
type NodeResources struct {
	Capacity    corev1.ResourceList `json:"capacity,omitempty"`
	Allocatable corev1.ResourceList `json:"allocatable,omitempty"`
}

// Encode returns the annotation's value.
func (in Intent) Encode() string {
	raw, err := json.Marshal(in)
	if err != nil {
		// Strings, numbers and times that were read always marshal.
		panic(err)
	}
	return string(raw)
}

// ReadIntent returns the plan that core stored with a Claim's providerID; false if the Claim has
// none. An annotation is no proof of who wrote it, so one that is not of this Claim and of its VM is
// an error.
func ReadIntent(claim *karpv1.NodeClaim) (Intent, bool, error) {
	raw, ok := claim.Annotations[v1alpha1.AnnotationLaunchIntent]
	if !ok || claim.Status.ProviderID == "" {
		return Intent{}, false, nil
	}
	failed := func(err error) error {
		return fmt.Errorf("reading annotation %s of NodeClaim %s: %w", v1alpha1.AnnotationLaunchIntent, claim.Name, err)
	}
	var in Intent
	if err := json.Unmarshal([]byte(raw), &in); err != nil {
		return Intent{}, false, failed(err)
	}
	switch {
	case in.ProviderID() != claim.Status.ProviderID:
		return Intent{}, false, failed(fmt.Errorf("it is the plan of VM %s, and the NodeClaim's VM is %s", in.ProviderID(), claim.Status.ProviderID))
	case in.ClaimUID != claim.UID:
		return Intent{}, false, failed(fmt.Errorf("it is the plan of the NodeClaim with the UID %q, and this one's is %q", in.ClaimUID, claim.UID))
	case in.Host == "":
		return Intent{}, false, failed(errors.New("it has no host"))
	}
	// Go reads times that it does not write, such as those with the time zone +24:00.
	if _, err := in.Time.MarshalJSON(); err != nil {
		return Intent{}, false, failed(err)
	}
	return in, true, nil
}

// Annotations are those that Create returns with a plan, and that core stores before the
// providerID.
func (in Intent) Annotations(class *v1alpha1.ProxmoxNodeClass) map[string]string {
	out := class.LaunchAnnotations()
	maps.Copy(out, map[string]string{
		v1alpha1.AnnotationLaunchedBy:     v1alpha1.LaunchedByVersion,
		v1alpha1.AnnotationLaunchIntent:   in.Encode(),
	})
	if class.Spec.MetadataOptions.ReplacesOnChange() && class.Status.BootDataHash != "" {
		out[v1alpha1.AnnotationBootDataHash] = class.Status.BootDataHash
	}
	return out
}

// Labels are those of the Node that describe its VM and that the plan decides.
func (in Intent) Labels() map[string]string {
	return map[string]string{
		corev1.LabelInstanceTypeStable: in.InstanceType, karpv1.CapacityTypeLabelKey: in.CapacityType,
		corev1.LabelTopologyRegion: in.Region, corev1.LabelTopologyZone: in.Host,
	}
}

// IsUnplaceable reports whether no offering meets the Claim's requirements: it is parked
// without a size, and its Host only reserves the VMID.
func (in Intent) IsUnplaceable() bool { return in.Parked && in.InstanceType == "" }

// ID returns region and VMID of the VM.
func (in Intent) ID() v1alpha1.ProviderID {
	return v1alpha1.ProviderID{Region: in.Region, VMID: in.VMID}
}

// ProviderID returns the provider ID of the VM.
func (in Intent) ProviderID() string { return in.ID().String() }

// IsListed reports whether the view shows a guest with the VMID where a launch creates it. A guest
// on another Host is not of this launch.
func (in Intent) IsListed(view inventory.View) bool {
	guest, listed := view.Guest(in.Region, in.VMID)
	return listed && (guest.Host == in.Host || guest.Host == in.TemplateHost)
}

// Reservation returns what the intent reserves in the ledger.
func (in Intent) Reservation(claim *karpv1.NodeClaim) inventory.Reservation {
	r := inventory.Reservation{
		ClaimUID: string(claim.UID),
		NodePool: claim.Labels[karpv1.NodePoolLabelKey],
		Region:   in.Region, Host: in.Host, TemplateHost: in.TemplateHost, VMID: in.VMID, Storage: in.Storage,
		Addresses: in.Network.Addresses(), Machine: in.Machine, CreatedAt: in.Time,
	}
	if !in.Parked {
		r.Amount = inventory.Amount{CPUs: in.Cores, MemoryBytes: int64(in.MemoryMiB) << 20}
		r.DiskBytes = in.DiskBytes
		for _, d := range in.Disks {
			if d.Retain {
				continue
			}
			r.Disks = append(r.Disks, inventory.ReservedDisk{Storage: d.Storage, Bytes: d.GiB() << 30})
		}
		r.Devices = in.Devices
		r.Binding = in.Binding.reservation()
	}
	return r
}

// Binding is the part of an intent that binds its VM to cells and cores of the Host.
type Binding struct {
	// Cells of the Host, in the order of the guest's.
	Cells []vmconfig.Cell `json:"cells"`
	// CPUs of the Host that only this VM uses ("2-3,34-35"); empty if its vCPUs are not pinned.
	CPUs string `json:"cpus,omitempty"`
	// Pin is the Host's CPU of each vCPU.
	Pin []int `json:"pin,omitempty"`
	// Method of pinning.
	Method placement.PinningMethod `json:"way,omitempty"`
	// Hugepages is the option that root sets; empty if none.
	Hugepages string `json:"hugepages,omitempty"`
}

// NewBinding returns the binding of a placement; nil if the VM is not bound.
func NewBinding(b *placement.Binding) *Binding {
	if b == nil {
		return nil
	}
	out := &Binding{CPUs: b.CPUs.String(), Pin: b.Pin, Method: b.Method, Hugepages: b.Hugepages}
	for _, cell := range b.Cells {
		out.Cells = append(out.Cells, vmconfig.Cell{HostCell: cell.ID, VCPUs: cell.VCPUs, MemoryMiB: cell.MemoryMiB})
	}
	return out
}

// CPUSet returns the CPUs of the Host that only this VM uses.
func (b *Binding) CPUSet() cpuset.CPUSet {
	set, _ := proxmox.ParseCPUs(b.CPUs) // empty if it does not parse
	return set
}

// reservation returns what the binding reserves in the ledger.
func (b *Binding) reservation() *inventory.Binding {
	if b == nil {
		return nil
	}
	out := &inventory.Binding{CPUs: b.CPUSet()}
	for _, cell := range b.Cells {
		out.Cells = append(out.Cells, inventory.BoundCell{ID: cell.HostCell, VCPUs: cell.VCPUs, MemoryMiB: cell.MemoryMiB})
	}
	return out
}
