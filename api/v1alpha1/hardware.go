// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// Hardware sets options of the VM besides its size. What is not set is inherited from the Template.
// +kubebuilder:validation:MinProperties=1
// +kubebuilder:validation:XValidation:rule="!has(self.machine) || self.machine.contains('q35') || !has(self.pci) || self.pci.all(d, !has(d.pcie) || !d.pcie)",message="pci[].pcie needs a machine type with PCI Express: set machine to q35, or remove pcie"
// +kubebuilder:validation:XValidation:rule="!has(self.confidentialComputing) || !has(self.confidentialComputing.intelTDX) || !has(self.machine) || self.machine.contains('q35')",message="confidentialComputing.intelTDX needs the machine type q35"
type Hardware struct {
	// cpuLimit is the CPU time that the VM can use, in CPUs (cpulimit). Kubernetes schedules with all vCPUs of the instance
	// type, so a limit below that makes the node slower than it reports.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=128
	// +optional
	CPULimit *int32 `json:"cpuLimit,omitempty"`

	// cpuUnits is the weight of the VM when the CPUs of the host are overcommitted (cpuunits). The default of Proxmox is 100.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10000
	// +optional
	CPUUnits *int32 `json:"cpuUnits,omitempty"`

	// balloon is the minimum memory of the VM in MiB, down to which the host can reclaim memory when it runs short (balloon). It
	// is limited to the memory of the instance type. Kubernetes schedules with the full memory, so pods can be killed while the
	// host reclaims memory. If it is not set, no memory is reclaimed.
	// +kubebuilder:validation:Minimum=1
	// +optional
	Balloon *int32 `json:"balloon,omitempty"`

	// ksm allows the host to merge the VM's memory pages with equal pages of other guests (allow-ksm). It needs Proxmox VE 9.1.
	// +optional
	KSM *bool `json:"ksm,omitempty"`

	// hotplug lists what can be added to the running VM: network, disk, usb, cpu and cloudinit, or only none (hotplug). The Proxmox
	// CSI driver needs disk. Memory is not allowed: it changes how the guest sees its memory.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=5
	// +kubebuilder:validation:items:Enum=network;disk;usb;cpu;cloudinit;none
	// +kubebuilder:validation:XValidation:rule="!('none' in self) || self.size() == 1",message="hotplug none disables hotplug: remove the other values, or remove none"
	// +listType=set
	// +optional
	Hotplug []string `json:"hotplug,omitempty"`

	// watchdog is a virtual watchdog device (watchdog).
	// +optional
	Watchdog *Watchdog `json:"watchdog,omitempty"`

	// rng is a random number generator (rng0). It needs Proxmox VE 8.4.
	// +optional
	RNG *RNG `json:"rng,omitempty"`

	// tpm is a virtual TPM (tpmstate0). A TPM of the template is kept, and must have the same version.
	// +optional
	TPM *TPMState `json:"tpm,omitempty"`

	// usb are USB devices of the host, in addition to those of the template (usb0 and so on).
	// +kubebuilder:validation:MaxItems=5
	// +listType=map
	// +listMapKey=mapping
	// +optional
	USB []USBDevice `json:"usb,omitempty"`

	// pci are PCI devices of the host that each VM of the class gets (hostpci0 and so on). A device of a mapping that the template
	// has too is the template's. VMs are created only on hosts with free devices.
	// +kubebuilder:validation:MaxItems=16
	// +listType=atomic
	// +optional
	PCI []PCIDevice `json:"pci,omitempty"`

	// machine is the machine type of QEMU, also with a version: q35, pc, pc-q35-9.2, pc-i440fx-9.2 (machine). Without a version,
	// each VM gets the newest one of its host.
	// +kubebuilder:validation:MaxLength=40
	// +kubebuilder:validation:Pattern=`^(pc|q35|virt|pc-i440fx-\d+(\.\d+)+(\+pve\d+)?|pc-q35-\d+(\.\d+)+(\+pve\d+)?|virt-\d+(\.\d+)+(\+pve\d+)?)$`
	// +optional
	Machine string `json:"machine,omitempty"`

	// scsiController is the model of the SCSI controller (scsihw).
	// +kubebuilder:validation:Enum=virtio-scsi-pci;virtio-scsi-single;lsi;lsi53c810;megasas;pvscsi
	// +optional
	SCSIController string `json:"scsiController,omitempty"`

	// agent configures the QEMU guest agent (agent).
	// +optional
	Agent *Agent `json:"agent,omitempty"`

	// startup is the order in which the host starts and stops its guests (startup). It needs the privilege Sys.Modify on /.
	// +optional
	Startup *StartupOrder `json:"startup,omitempty"`

	// confidentialComputing encrypts the memory of the VM. It needs a root login in the cloud config, because no API token may set
	// it.
	// +optional
	ConfidentialComputing *ConfidentialComputing `json:"confidentialComputing,omitempty"`
}

// Watchdog is a virtual watchdog device.
type Watchdog struct {
	// model is i6300esb or ib700. The default is i6300esb.
	// +kubebuilder:default=i6300esb
	// +kubebuilder:validation:Enum=i6300esb;ib700
	// +optional
	Model string `json:"model,omitempty"`

	// action is what happens when the guest stops to serve the watchdog: reset, shutdown, poweroff, pause, debug or none. The
	// default is reset.
	// +kubebuilder:default=reset
	// +kubebuilder:validation:Enum=reset;shutdown;poweroff;pause;debug;none
	// +optional
	Action string `json:"action,omitempty"`
}

// RNG is a random number generator of the Host.
// +kubebuilder:validation:XValidation:rule="!has(self.period) || has(self.maxBytes)",message="period is the interval of maxBytes: set maxBytes, or remove period"
type RNG struct {
	// source is the device of the host: urandom, random or hwrng. hwrng needs the privilege Mapping.Use on /mapping/hwrng. The
	// default is urandom.
	// +kubebuilder:default=urandom
	// +kubebuilder:validation:Enum=urandom;random;hwrng
	// +optional
	Source string `json:"source,omitempty"`

	// maxBytes is how many bytes the guest gets in each period. 0 means without limit. The default of Proxmox is 1024.
	// +kubebuilder:validation:Minimum=0
	// +optional
	MaxBytes *int32 `json:"maxBytes,omitempty"`

	// period is the length of a period in milliseconds. The default of Proxmox is 1000.
	// +kubebuilder:validation:Minimum=1
	// +optional
	Period *int32 `json:"period,omitempty"`
}

// TPMState is a virtual TPM and the storage of its state.
type TPMState struct {
	// version is the TPM version: v1.2 or v2.0. The default is v2.0.
	// +kubebuilder:default="v2.0"
	// +kubebuilder:validation:Enum=v1.2;v2.0
	// +optional
	Version string `json:"version,omitempty"`

	// storage is the Proxmox storage of the state. If empty, the storage of the boot disk is used.
	// +kubebuilder:validation:MaxLength=100
	// +kubebuilder:validation:Pattern=`^[a-zA-Z][a-zA-Z0-9._-]*[a-zA-Z0-9]$`
	// +optional
	Storage string `json:"storage,omitempty"`
}

// USBDevice is a USB device of the Host that is passed through to the VM.
type USBDevice struct {
	// mapping is the name of the Proxmox resource mapping. It needs the privilege Mapping.Use on /mapping/usb.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[a-zA-Z][a-zA-Z0-9_-]+$`
	// +required
	Mapping string `json:"mapping,omitempty"`

	// usb3 connects the device to a USB 3 port. Machine types from 7.1 do so anyway.
	// +optional
	USB3 *bool `json:"usb3,omitempty"`
}

// StartupOrder defines when a Host starts and stops a VM relative to other guests.
// +kubebuilder:validation:MinProperties=1
type StartupOrder struct {
	// order is the position. Guests with a lower one start first and stop last.
	// +kubebuilder:validation:Minimum=0
	// +optional
	Order *int32 `json:"order,omitempty"`

	// upDelay is the delay in seconds before the next guest is started.
	// +kubebuilder:validation:Minimum=0
	// +optional
	UpDelay *int32 `json:"upDelay,omitempty"`

	// downDelay is the time in seconds that the guest has to stop before the next guest is stopped.
	// +kubebuilder:validation:Minimum=0
	// +optional
	DownDelay *int32 `json:"downDelay,omitempty"`
}

// ConfidentialComputing encrypts the memory of a VM.
// +kubebuilder:validation:XValidation:rule="has(self.amdSEV) != has(self.intelTDX)",message="confidentialComputing needs one of amdSEV and intelTDX, not both"
type ConfidentialComputing struct {
	// amdSEV is Secure Encrypted Virtualization of AMD CPUs (amd-sev).
	// +optional
	AMDSEV *AMDSEV `json:"amdSEV,omitempty"`

	// intelTDX is Trust Domain Extensions of Intel CPUs (intel-tdx). It needs Proxmox VE 9.1.
	// +optional
	IntelTDX *IntelTDX `json:"intelTDX,omitempty"`
}

// AMDSEV configures Secure Encrypted Virtualization.
type AMDSEV struct {
	// type is std (SEV), es (SEV-ES) or snp (SEV-SNP).
	// +kubebuilder:validation:Enum=std;es;snp
	// +required
	Type string `json:"type,omitempty"`

	// noDebug forbids to debug the guest.
	// +optional
	NoDebug *bool `json:"noDebug,omitempty"`

	// noKeySharing forbids to share the key with other guests.
	// +optional
	NoKeySharing *bool `json:"noKeySharing,omitempty"`

	// kernelHashes adds hashes of the kernel to the measurement of the guest.
	// +optional
	KernelHashes *bool `json:"kernelHashes,omitempty"`

	// allowSMT lets the guest run on a host with simultaneous multithreading.
	// +optional
	AllowSMT *bool `json:"allowSMT,omitempty"`
}

// IntelTDX configures Trust Domain Extensions.
type IntelTDX struct {
	// attestation lets the guest request a quote from the host's quote generation service. The default is false.
	// +optional
	Attestation bool `json:"attestation,omitempty"`

	// vsockCID is the CID of that service. The default of Proxmox is 2.
	// +kubebuilder:validation:Minimum=2
	// +optional
	VsockCID *int32 `json:"vsockCID,omitempty"`

	// vsockPort is the port of that service. The default of Proxmox is 4050.
	// +kubebuilder:validation:Minimum=1
	// +optional
	VsockPort *int32 `json:"vsockPort,omitempty"`
}

// Get returns the options; the zero value for nil.
func (in *Hardware) Get() Hardware {
	if in == nil {
		return Hardware{}
	}
	return *in
}
