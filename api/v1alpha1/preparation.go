// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Preparation defines how software is installed in a template: after the import of the image, a builder VM boots with its own
// boot data, installs what nodes need, and powers itself off. It then becomes the template.
// +kubebuilder:validation:XValidation:rule="!has(self.timeout) || duration(self.timeout) >= duration('1m')",message="timeout must be at least 1m: the builder VM has to boot and install packages"
// +kubebuilder:validation:XValidation:rule="!has(self.keepFailed) || duration(self.keepFailed) >= duration('0s')",message="keepFailed must not be negative; 0s deletes a failed builder VM at once"
// +kubebuilder:validation:XValidation:rule="!has(self.refreshAfter) || duration(self.refreshAfter) >= duration('1h')",message="refreshAfter must be at least 1h, because each refresh replaces all nodes of the template"
type Preparation struct {
	// templatesRef names the Secret with the boot data templates of the builder VM. Its keys are user-data, which is required,
	// meta-data, network-config and vendor-data. The templates have the same functions and data as those of a ProxmoxNodeClass,
	// except for the data of a node, such as its join token and its kubelet configuration. The builder VM must power itself off
	// when it is done. A change of the content creates a new template.
	// +required
	TemplatesRef SecretReference `json:"templatesRef,omitzero" hash:"ignore"`

	// valuesRef names a Secret whose keys are available in the boot data templates as .Values.<key>. A change of the content
	// creates a new template.
	// +optional
	ValuesRef *SecretReference `json:"valuesRef,omitempty" hash:"ignore"`

	// storage is the Proxmox storage with content type iso that the rendered boot data is uploaded to. If empty, the first
	// enabled and active one on the host is used.
	// +kubebuilder:validation:MaxLength=100
	// +kubebuilder:validation:Pattern=`^[a-zA-Z][a-zA-Z0-9._-]*[a-zA-Z0-9]$`
	// +optional
	Storage string `json:"storage,omitempty" hash:"ignore"`

	// size is the size of the builder VM. The default is 2 CPUs and 2Gi.
	// +optional
	Size VMSize `json:"size,omitzero" hash:"ignore"`

	// diskSize is the size of the template's disk, if the software does not fit on the disk of the image. A change creates a
	// new template. The default is the size of the image.
	// +optional
	DiskSize DiskSize `json:"diskSize,omitempty"`

	// timeout is how long the builder VM may run. If it has not powered itself off by then, the preparation has failed. The
	// default is 30m.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$`
	// +optional
	Timeout *metav1.Duration `json:"timeout,omitempty" hash:"ignore"`

	// keepFailed is how long the builder VM of a failed preparation is kept for inspection. Then it is deleted, and the
	// preparation is retried. 0s deletes it at once. The default is 1h.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$`
	// +optional
	KeepFailed *metav1.Duration `json:"keepFailed,omitempty" hash:"ignore"`

	// refreshAfter is the age at which templates are rebuilt, for example 168h, to install security updates. Nodes then drift as
	// after any change of the template. The default is no refresh.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$`
	// +optional
	RefreshAfter *metav1.Duration `json:"refreshAfter,omitempty" hash:"ignore"`

	// maxConcurrent is on how many hosts builder VMs of this template run at the same time. Failed ones that are kept do not
	// count. Set it to 1 if network-config contains a static address: a failed one is then stopped. The default is 2.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	// +optional
	MaxConcurrent int32 `json:"maxConcurrent,omitempty" hash:"ignore"`
}

// Defaults of a Preparation.
const (
	defaultBuilderCPUs          = 2
	defaultBuilderMemoryMiB     = 2048
	defaultPreparationTimeout   = 30 * time.Minute
	defaultKeepFailed           = time.Hour
	defaultMaxConcurrentBuilder = 2
)

// CPUs returns the number of CPUs of the builder VM.
func (p *Preparation) CPUs() int {
	if p.Size.CPU == 0 {
		return defaultBuilderCPUs
	}

	return int(p.Size.CPU)
}

// MemoryMiB returns the memory of the builder VM.
func (p *Preparation) MemoryMiB() int {
	bytes, err := p.Size.Memory.Bytes()
	if err != nil || bytes == 0 {
		// The API server rejects other formats.
		return defaultBuilderMemoryMiB
	}

	return int(bytes >> 20)
}

// TimeLimit returns how long the builder VM may run.
func (p *Preparation) TimeLimit() time.Duration {
	return durationOr(p.Timeout, defaultPreparationTimeout)
}

// FailedRetention returns how long a failed builder VM is kept.
func (p *Preparation) FailedRetention() time.Duration {
	return durationOr(p.KeepFailed, defaultKeepFailed)
}

// HostLimit returns on how many Hosts builder VMs run at the same time.
func (p *Preparation) HostLimit() int {
	if p.MaxConcurrent == 0 {
		return defaultMaxConcurrentBuilder
	}

	return int(p.MaxConcurrent)
}

func durationOr(d *metav1.Duration, fallback time.Duration) time.Duration {
	if d == nil {
		return fallback
	}

	return d.Duration
}

// PreparationStatus is the state of a preparation that all Hosts have in common.
type PreparationStatus struct {
	// bootDataHash is the hash of the content of the Secrets in spec.prepare. It stays while they cannot be read.
	// +optional
	BootDataHash string `json:"bootDataHash,omitempty"`

	// refreshedAt is when the last refresh of the templates started, see spec.prepare.refreshAfter.
	// +optional
	RefreshedAt *metav1.Time `json:"refreshedAt,omitempty"`
}
