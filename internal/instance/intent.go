// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/network"
)

// Intent is what a launch decided, written on the Claim before anything is done,
// so that a restarted controller carries on instead of starting another VM. It
// holds the decision and not its inputs: a changed catalogue or NodeClass does
// not change a VM that is half made.
//
// Fields may be added within a version as long as a controller that ignores them, as
// after a downgrade, still makes the same VM. Anything else is another version. Region,
// Host and VMID are in all of them, past and future.
type Intent struct {
	Version      int    `json:"v"`
	Region       string `json:"region"`
	Host         string `json:"host"`
	VMID         int    `json:"vmid"`
	TemplateHost string `json:"templateHost"`
	TemplateID   int    `json:"template"`
	// ImageID is the Template's generation, for drift.
	ImageID      string `json:"image,omitempty"`
	InstanceType string `json:"type"`
	CapacityType string `json:"capacityType"`
	Cores        int    `json:"cores"`
	MemoryMiB    int    `json:"memoryMiB"`
	DiskBytes    int64  `json:"disk"`
	// Full is a full clone, to Storage.
	Full    bool   `json:"full,omitempty"`
	Storage string `json:"storage"`
	Pool    string `json:"pool,omitempty"`
	// ISOStorage takes the boot drive; empty = the VM gets none.
	ISOStorage string `json:"isoStorage,omitempty"`
	// Firmware: what is put there is no drive but Ignition, for QEMU to hand over.
	Firmware bool `json:"firmware,omitempty"`
	// MACs by interface, fixed now so that the boot drive can be made while the
	// clone is still running.
	MACs map[string]string `json:"macs,omitempty"`
	// Network is how the interfaces get their addresses, and which they were given.
	Network network.Assignment `json:"network,omitzero"`
	// Devices are PCI mappings that the VM gets a device of, its Template's included.
	Devices []string  `json:"devices,omitempty"`
	Time    time.Time `json:"time"`
	// Binding to cells and cores of the Host; nil where the VM floats.
	Binding *Binding `json:"binding,omitempty"`
	// Parked intents hold a VMID but no capacity: they wait for room.
	Parked bool `json:"parked,omitempty"`
}

const intentVersion = 1

// Encode gives the annotation's value.
func (in Intent) Encode() string {
	in.Version = intentVersion
	raw, err := json.Marshal(in)
	if err != nil {
		// Strings, numbers and times always marshal.
		panic(err)
	}
	return string(raw)
}

// ErrNewerVersion says that a newer controller has written something that this one cannot
// read. To guess could make a second VM, or lose one: it is left as it is, and looked
// at again.
var ErrNewerVersion = errors.New("a newer controller wrote it than this one; run that release again, or a later one")

// place is the part of an intent that every version can read.
type place struct {
	Version int    `json:"v"`
	Region  string `json:"region"`
	Host    string `json:"host"`
	VMID    int    `json:"vmid"`
}

// ReadIntent reads a Claim's intent; false when it has none. With ErrNewerVersion it tells
// the place and no more.
func ReadIntent(claim *karpv1.NodeClaim) (Intent, bool, error) {
	raw, ok := claim.Annotations[v1alpha1.AnnotationLaunchIntent]
	if !ok {
		return Intent{}, false, nil
	}
	failed := func(err error) error {
		return fmt.Errorf("reading annotation %s of nodeclaim %s, %w", v1alpha1.AnnotationLaunchIntent, claim.Name, err)
	}
	var at place
	if err := json.Unmarshal([]byte(raw), &at); err != nil {
		return Intent{}, false, failed(err)
	}
	if at.Version < 1 || at.Region == "" || at.Host == "" || at.VMID == 0 {
		return Intent{}, false, failed(fmt.Errorf("found version %d with region %q, host %q, VM %d; version %d with all of them is what this controller writes",
			at.Version, at.Region, at.Host, at.VMID, intentVersion))
	}
	if at.Version > intentVersion {
		return Intent{Version: at.Version, Region: at.Region, Host: at.Host, VMID: at.VMID}, true,
			failed(fmt.Errorf("found version %d, this controller reads version %d: %w", at.Version, intentVersion, ErrNewerVersion))
	}
	var in Intent
	if err := json.Unmarshal([]byte(raw), &in); err != nil {
		return Intent{}, false, failed(err)
	}
	return in, true, nil
}

// readPlace reads what any version of an intent tells: region, Host and VMID.
func readPlace(claim *karpv1.NodeClaim) (Intent, bool, error) {
	in, ok, err := ReadIntent(claim)
	if errors.Is(err, ErrNewerVersion) {
		err = nil
	}
	return in, ok, err
}

// Nowhere tells that nothing meets what the Claim asks for: it is parked without a size,
// and its place is only where its VMID is held.
func (in Intent) IsUnplaceable() bool { return in.Parked && in.InstanceType == "" }

// ProviderID of the VM that the intent will make.
func (in Intent) ProviderID() string {
	return v1alpha1.ProviderID{Region: in.Region, VMID: in.VMID}.String()
}

// Reservation is the intent's share of the ledger.
func (in Intent) Reservation(claim *karpv1.NodeClaim) inventory.Reservation {
	r := inventory.Reservation{
		ClaimUID: string(claim.UID),
		NodePool: claim.Labels[karpv1.NodePoolLabelKey],
		Region:   in.Region, Host: in.Host, VMID: in.VMID, Storage: in.Storage,
		Addresses: in.Network.Addresses(), CreatedAt: in.Time,
	}
	if !in.Parked {
		r.Amount = inventory.Amount{CPUs: in.Cores, MemoryBytes: int64(in.MemoryMiB) << 20}
		r.DiskBytes = in.DiskBytes
		r.Devices = in.Devices
		r.Binding = in.Binding.reserved()
	}
	return r
}
