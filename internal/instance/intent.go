// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/cpuset"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/network"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/vmconfig"
)

// Intent is the plan of a VM, or as much of it as is known. A plan contains the decision and not its
// inputs: a changed catalog or NodeClass does not change a launch in progress.
//
// It is in memory. What survives a restart is what core stored with the Claim's providerID, and what
// the VM's configuration and ownership mark show.
type Intent struct {
	Region       string
	Host         string
	VMID         int
	TemplateHost string
	TemplateID   int
	// ImageID is the Template's generation, for drift.
	ImageID      string
	InstanceType string
	CapacityType string
	Cores        int
	MemoryMiB    int
	DiskBytes    int64
	// Price of the offering, for the VM's notes.
	Price float64
	// FullClone copies the Template's disk to Storage.
	FullClone bool
	Storage   string
	// Disks besides the boot disk, each with the Storage that was chosen.
	Disks        []v1alpha1.Disk
	ResourcePool string
	// HA is nil if the VM is not in HA.
	HA *v1alpha1.HighAvailability
	// ISOStorage is the storage of the boot drive; empty if the VM has none.
	ISOStorage string
	// Firmware: the file there is not a drive but Ignition, passed by QEMU's fw_cfg.
	Firmware bool
	// MACs by interface, chosen now so the boot drive can be made during the clone.
	MACs map[string]string
	// Network holds the addresses of the interfaces.
	Network network.Assignment
	// Devices are PCI mappings, including those of the Template.
	Devices []string
	Time    time.Time
	// Binding to cells and cores of the Host; nil if the VM is not bound.
	Binding *Binding
	// Machine is the name of the class's machine that the VM is; empty if the class has none.
	Machine string
	// Retained are the volumes of the Disks that are kept for the machine, by name.
	Retained map[string]string
	// Parked intents reserve a VMID but no capacity: they wait for it.
	Parked bool
	// Resources of the Node of a Claim that is or was parked; nil for others. They are written to
	// the Claim's status when there is capacity: pods would wait for those of a parked Claim.
	Resources *NodeResources
	// ClassHash is the hash of the NodeClass that was planned with.
	ClassHash string
	// Known: it is the plan of this process, or the configuration of the VM was read. Otherwise, what core
	// did not store is missing.
	Known bool
}

// NodeResources are the resources of the Node that a Claim becomes.
type NodeResources struct{ Capacity, Allocatable corev1.ResourceList }

// Holds are what a Claim's VM has besides its size. Core stores them with the providerID. They grant
// nothing: others do not get them, and the VM gets them again if it is planned again after a restart
// and they are still free.
type Holds struct {
	Addresses []netip.Addr `json:"addresses,omitempty"`
	Machine   string       `json:"machine,omitempty"`
	Devices   []string     `json:"devices,omitempty"`
	Storage   string       `json:"storage,omitempty"`
}

// ReadHolds returns the Holds of a Claim; none if they cannot be read.
func ReadHolds(claim *karpv1.NodeClaim) Holds {
	var holds Holds
	if err := json.Unmarshal([]byte(claim.Annotations[v1alpha1.AnnotationHolds]), &holds); err != nil {
		return Holds{}
	}
	return holds
}

// ReadIntent returns what core stored about a Claim's VM; false if it has none.
func ReadIntent(claim *karpv1.NodeClaim) (Intent, bool) {
	id, err := v1alpha1.ParseProviderID(claim.Status.ProviderID)
	if err != nil {
		return Intent{}, false
	}
	holds, capacity := ReadHolds(claim), claim.Status.Capacity
	in := Intent{
		Region: id.Region, VMID: id.VMID, Host: claim.Labels[corev1.LabelTopologyZone], ImageID: claim.Status.ImageID,
		InstanceType: claim.Labels[corev1.LabelInstanceTypeStable], CapacityType: claim.Labels[karpv1.CapacityTypeLabelKey],
		Cores: int(capacity.Cpu().Value()), MemoryMiB: int(capacity.Memory().Value() >> 20), DiskBytes: capacity.StorageEphemeral().Value(),
		Storage: holds.Storage, Devices: holds.Devices, Machine: holds.Machine, Time: claim.CreationTimestamp.UTC(), Parked: len(capacity) == 0,
		ClassHash: claim.Annotations[v1alpha1.AnnotationNodeClassHash],
	}
	for n, address := range holds.Addresses {
		if in.Network.Interfaces == nil {
			in.Network.Interfaces = map[string]network.InterfaceAddresses{}
		}
		prefix := netip.PrefixFrom(address, address.BitLen())
		held := network.InterfaceAddresses{Address4: prefix}
		if address.Is6() {
			held = network.InterfaceAddresses{Address6: prefix}
		}
		in.Network.Interfaces[fmt.Sprintf("held%d", n)] = held
	}
	return in, true
}

// IntentOf returns what is known about a Claim's VM: what its configuration shows once it is
// configured, otherwise the plan of this process, otherwise what core stored. It is false if the Claim
// has no VM.
func (d Deps) IntentOf(claim *karpv1.NodeClaim) (Intent, bool) {
	in, ok := ReadIntent(claim)
	plan, planned := d.Launches.Plan(string(claim.UID))
	if planned = ok && planned && plan.ProviderID() == in.ProviderID(); planned {
		in = plan
		in.Known = true
	}
	in = in.in(d.Inventory.View(), d.KubeCluster, claim)
	if planned && plan.ISOStorage == "" { // the cached configuration may be older than the cleanup
		in.ISOStorage = ""
	}
	return in, ok
}

// IntentIn returns what a View and core's record show about a Claim's VM, for processes that launch
// none. It is false if the Claim has no VM.
func IntentIn(view inventory.View, kubeCluster string, claim *karpv1.NodeClaim) (Intent, bool) {
	in, ok := ReadIntent(claim)
	return in.in(view, kubeCluster, claim), ok
}

// in returns the intent with what the View shows of its VM, if it is configured.
func (in Intent) in(view inventory.View, kubeCluster string, claim *karpv1.NodeClaim) Intent {
	guest, listed := view.Guest(in.Region, in.VMID)
	if !listed {
		return in
	}
	if vm, owned := newVM(kubeCluster, view.Snapshots[in.Region], guest); owned && vm.ClaimUID == string(claim.UID) && !vm.hasNewerMark && vmconfig.IsConfigured(vm.Config, vm.VMID) {
		return ObservedIntent(in, vm, guest.Pool)
	}
	return in
}

// ObservedIntent returns an intent with what the configuration and the mark of its VM show.
func ObservedIntent(in Intent, vm VM, pool string) Intent {
	cfg, mark := vm.Config, vm.mark
	in.Cores, in.MemoryMiB = cfg.Compute().Cores()*cfg.Compute().Sockets(), cfg.Compute().MemoryMiB()
	in.Known, in.Parked, in.ResourcePool, in.HA = true, false, pool, nil
	in.TemplateHost, in.TemplateID, in.ImageID, in.FullClone = "", 0, "", true
	if mark.Source != nil {
		in.TemplateHost, in.TemplateID, in.ImageID, in.FullClone = mark.Source.Host, mark.Source.VMID, mark.Source.Image, mark.Source.Full
	}
	if disk, ok := cfg.Drives().Boot(); ok {
		in.DiskBytes, in.Storage = disk.SizeBytes, disk.Storage
	}
	if mark.Applied != nil {
		in.ResourcePool, in.DiskBytes = mark.Applied.Pool, max(in.DiskBytes, mark.Applied.DiskBytes)
		if mark.Applied.IsPending(ownership.PartHA) {
			in.HA = AppliedHA(mark)
		}
	}
	in.ISOStorage, in.Firmware = "", false
	if mark.Boot != nil {
		in.ISOStorage, in.Firmware = mark.Boot.Storage, mark.Boot.Firmware
	}
	in.Machine, in.Retained, in.Binding = mark.Machine, retainedIn(cfg, mark), bindingIn(cfg, mark)
	in.Devices = nil
	for _, device := range cfg.HostDevices().PCI() {
		in.Devices = append(in.Devices, device.Mapping)
	}
	in.MACs, in.Network.Interfaces = map[string]string{}, maps.Clone(in.Network.Interfaces)
	maps.DeleteFunc(in.Network.Interfaces, func(slot string, _ network.InterfaceAddresses) bool { return strings.HasPrefix(slot, "held") })
	for _, nic := range cfg.Network().NICs() {
		in.MACs[nic.Slot] = nic.MAC
		if in.Network.Interfaces == nil {
			in.Network.Interfaces = map[string]network.InterfaceAddresses{}
		}
		in.Network.Interfaces[nic.Slot] = in.Network.Interfaces[nic.Slot].WithConfig(cfg.Network().IPConfig(nic.Slot))
	}
	return in
}

// retainedIn returns the volumes of a VM that are kept for its machine, by the name of the disk.
func retainedIn(cfg proxmox.VMConfig, mark ownership.Mark) map[string]string {
	var out map[string]string
	for _, drive := range cfg.Drives().All() {
		if name := drive.Properties.Value("serial"); slices.Contains(mark.Retained, name) {
			if out == nil {
				out = map[string]string{}
			}
			out[name] = drive.VolumeID
		}
	}
	return out
}

// bindingIn returns the binding of a VM; nil if it has none.
func bindingIn(cfg proxmox.VMConfig, mark ownership.Mark) *Binding {
	binding := Binding{CPUs: mark.CPUs, Pin: mark.Pin, Method: placement.PinningMethod(mark.Pinning), Hugepages: mark.Hugepages}
	for _, cell := range cfg.Compute().NUMACells() {
		if hosts := cell.HostCells.List(); len(hosts) == 1 {
			binding.Cells = append(binding.Cells, vmconfig.Cell{HostCell: hosts[0], VCPUs: cell.CPUs.Size(), MemoryMiB: int64(cell.MemoryMiB)})
		}
	}
	if binding.Method == "" && binding.CPUs == "" && binding.Hugepages == "" && len(binding.Cells) == 0 {
		return nil
	}
	return &binding
}

// Annotations are those that Create returns with a plan, and that core stores before the
// providerID.
func (in Intent) Annotations(class *v1alpha1.ProxmoxNodeClass) map[string]string {
	raw, err := json.Marshal(Holds{Addresses: in.Network.Addresses(), Machine: in.Machine, Devices: in.Devices, Storage: in.Storage})
	if err != nil {
		panic(err) // strings and addresses always marshal
	}
	out := class.LaunchAnnotations()
	out[v1alpha1.AnnotationLaunchedBy], out[v1alpha1.AnnotationHolds] = v1alpha1.LaunchedByVersion, string(raw)
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

// Zone returns the Host that the VM was planned on.
func (in Intent) Zone() placement.Zone { return placement.Zone{Region: in.Region, Host: in.Host} }

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
	return listed && (guest.Host == in.Host || guest.Host == in.TemplateHost || in.TemplateHost == "")
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
		r.Amount = observed.Amount{CPUs: in.Cores, MemoryBytes: int64(in.MemoryMiB) << 20}
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
	Cells []vmconfig.Cell
	// CPUs of the Host that only this VM uses ("2-3,34-35"); empty if its vCPUs are not pinned.
	CPUs string
	// Pin is the Host's CPU of each vCPU.
	Pin []int
	// Method of pinning.
	Method placement.PinningMethod
	// Hugepages is the option that root sets; empty if none.
	Hugepages string
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
