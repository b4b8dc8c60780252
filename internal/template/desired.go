// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package template

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// Desired is the desired state of a ProxmoxTemplate.
type Desired struct {
	Name, UID string
	Spec      v1alpha1.ProxmoxTemplateSpec
	// Hash is the generation: a change creates new Templates.
	Hash string
	// BootDataHash is the hash of the boot data of builder VMs; empty until it was read.
	// Problem is why it cannot be read or used.
	BootDataHash, Problem string
	// RefreshedAt is when the last refresh started; zero if there was none.
	RefreshedAt time.Time
	// Settings is the hash of the settings that are updated in place.
	Settings string
	// CloudInit is whether the Template has a cloud-init drive. VMs that boot from our
	// own drive must not have a second one.
	CloudInit bool
	// ChecksumProblem is why the checksum could not be read from checksumURL.
	ChecksumProblem string
	// Deleted is whether the object is being deleted: then no Template is required.
	Deleted bool
	// Revision is the generation of the object. A change resets the backoff.
	Revision int64
}

// NewDesired returns the desired state of a ProxmoxTemplate. It has a cloud-init drive
// if VMs of one of its classes get their boot data from Proxmox.
func NewDesired(template *v1alpha1.ProxmoxTemplate, classes []v1alpha1.ProxmoxNodeClass) Desired {
	desired := Desired{
		Name: template.Name, UID: string(template.UID), Spec: template.Spec, Hash: template.Hash(),
		Deleted: !template.DeletionTimestamp.IsZero(), Revision: template.Generation,
	}
	desired.Spec.SourceImage = template.Source()
	for _, condition := range template.Status.Conditions {
		if condition.Type == v1alpha1.ConditionChecksumResolved && condition.Status == metav1.ConditionFalse {
			desired.ChecksumProblem = condition.Message
		}
	}
	if template.Spec.Prepare != nil && template.Status.Preparation != nil {
		// One of another release is read again.
		if hash := template.Status.Preparation.BootDataHash; strings.HasPrefix(hash, v1alpha1.BootDataHashPrefix) {
			desired.BootDataHash = hash
		}
		if refreshed := template.Status.Preparation.RefreshedAt; refreshed != nil {
			desired.RefreshedAt = refreshed.Time
		}
	}
	for _, class := range classes {
		ref := class.Spec.InstanceTemplateRef
		if ref.Kind == v1alpha1.ProxmoxTemplateKind && ref.Name == template.Name && !class.Spec.MetadataOptions.IsRendered() {
			desired.CloudInit = true
		}
	}
	desired.Settings = template.InPlaceHash()
	if desired.CloudInit {
		desired.Settings += "-cloudinit"
	}
	return desired
}

// appliesTo reports whether Templates are required in a region.
func (d Desired) appliesTo(region string) bool {
	return !d.Deleted && (d.Spec.Region == "" || d.Spec.Region == region)
}

// isUnread reports whether the Secrets of the preparation have not been read yet.
func (d Desired) isUnread() bool { return d.Spec.Prepare != nil && d.BootDataHash == "" }

// matches reports whether a Template has the desired generation. Hashes of another
// version cannot be compared and match: a new release must not rebuild every Template. A builder
// VM does not match if nothing is prepared anymore.
func (d Desired) matches(mark ownership.Mark) bool {
	return mark.Hash == d.Hash || mark.HashVersion != v1alpha1.HashVersion && (mark.Builder == nil || d.Spec.Prepare != nil)
}

// Existing is a Template or VM with the ownership mark of a ProxmoxTemplate.
type Existing struct {
	Region, Host string
	VMID         int
	Mark         ownership.Mark
	Config       proxmox.VMConfig
}

// Zone returns the Template's zone and VMID.
func (e Existing) Zone() v1alpha1.TemplateZone {
	return v1alpha1.TemplateZone{Region: e.Region, Host: e.Host, VMID: e.VMID}
}

// readOwnedMark returns the ownership mark of a VM if every part of it matches. A mark
// written by a later release does not match: an additional Template is better than one
// that is changed by a release that cannot read its mark.
func readOwnedMark(kubeCluster, uid string, vmid int, config proxmox.VMConfig) (ownership.Mark, bool) {
	mark, ok := ownership.Read(config.Description())
	return mark, ok && !mark.Newer() && mark.VMID == vmid && mark.KubeCluster == kubeCluster && mark.TemplateUID == uid && uid != ""
}

func parseOwned(kubeCluster, uid string, guest observed.Guest, region string, config proxmox.VMConfig) (Existing, bool) {
	mark, ok := readOwnedMark(kubeCluster, uid, guest.VMID, config)
	return Existing{Region: region, Host: guest.Host, VMID: guest.VMID, Mark: mark, Config: config}, ok
}

// ListOwned returns the finished Templates of a ProxmoxTemplate in the view, sorted by
// region and VMID.
func ListOwned(view inventory.View, kubeCluster, uid string) []Existing {
	var out []Existing
	for _, region := range slices.Sorted(maps.Keys(view.Snapshots)) {
		guests := view.Snapshots[region].Guests
		for _, vmid := range slices.Sorted(maps.Keys(guests)) {
			guest := guests[vmid]
			if !guest.Template || guest.Config == nil || !guest.Config.IsTemplate() {
				continue
			}
			if owned, ok := parseOwned(kubeCluster, uid, guest, region, *guest.Config); ok {
				out = append(out, owned)
			}
		}
	}
	return out
}

// onHost returns those on one Host.
func onHost(all []Existing, region, host string) []Existing {
	return slices.DeleteFunc(slices.Clone(all), func(e Existing) bool { return e.Region != region || e.Host != host })
}

func (e Existing) String() string { return fmt.Sprintf("template %d on host %s", e.VMID, e.Host) }
