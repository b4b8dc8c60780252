// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// HAState is the state that HA is requested to keep a VM in.
// +kubebuilder:validation:Enum=started;ignored
type HAState string

const (
	// HAStateStarted starts the VM again after a failure, on another Host if necessary.
	HAStateStarted HAState = "started"
	// HAStateIgnored only lists the VM; HA does not act on it.
	HAStateIgnored HAState = "ignored"
)

// HighAvailability adds VMs to Proxmox HA.
// +kubebuilder:validation:XValidation:rule="!has(self.group) || (!has(self.rules) && (!has(self.separateHosts) || !self.separateHosts))",message="group is for Proxmox VE 8, and rules and separateHosts are for Proxmox VE 9 or newer: remove one of them, or use one NodeClass per cluster"
type HighAvailability struct {
	// state is the state that HA keeps the VM in: started, or ignored to list the VM without acting on it. The default is
	// started.
	// +kubebuilder:default=started
	// +optional
	State HAState `json:"state,omitempty"`

	// maxRestart is how often HA tries to start the VM on its host after a start failed. The default of Proxmox is 1.
	// +kubebuilder:validation:Minimum=0
	// +optional
	MaxRestart *int32 `json:"maxRestart,omitempty"`

	// maxRelocate is how often HA then tries to start the VM on another host. With 0 the VM stays on its host. The default of
	// Proxmox is 1.
	// +kubebuilder:validation:Minimum=0
	// +optional
	MaxRelocate *int32 `json:"maxRelocate,omitempty"`

	// group is the existing HA group of the VM. VMs are created only on the hosts of the group. It needs Proxmox VE 8, because
	// rules replaced groups in version 9.
	// +kubebuilder:validation:MinLength=2
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[a-zA-Z][a-zA-Z0-9_-]+$`
	// +optional
	Group string `json:"group,omitempty"`

	// rules are the existing HA rules that the VM is added to. VMs are created only on hosts that the node affinity rules among
	// them contain. It needs Proxmox VE 9.0.
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MinLength=2
	// +kubebuilder:validation:items:MaxLength=64
	// +kubebuilder:validation:items:Pattern=`^[a-zA-Z][a-zA-Z0-9_-]+$`
	// +listType=set
	// +optional
	Rules []string `json:"rules,omitempty"`

	// separateHosts keeps the VMs of a NodePool on separate hosts, also when HA moves them: the provider maintains a negative
	// resource affinity rule for each NodePool. It needs Proxmox VE 9.0 and placementStrategy.poolAffinity SeparateHosts.
	// +optional
	SeparateHosts bool `json:"separateHosts,omitempty"`
}

// HasRules reports whether the VM is in rules; false for nil.
func (in *HighAvailability) HasRules() bool {
	return in != nil && (len(in.Rules) > 0 || in.SeparateHosts)
}
