// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package template

import (
	"fmt"
	"maps"
	"slices"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// Wish is what a ProxmoxTemplate asks for.
type Desired struct {
	Name, UID string
	Spec      v1alpha1.ProxmoxTemplateSpec
	// Hash is the generation: another one makes new Templates.
	Hash string
	// Settings is the hash of what is written to Templates in place.
	Settings string
	// CloudInit asks for a cloud-init drive. VMs that boot from a drive of ours must
	// not have a second one.
	CloudInit bool
	// Deleted wishes ask for nothing any more.
	Deleted bool
	// Revision of the object: a change of it is worth a new try at once.
	Revision int64
}

// NewDesired reads a ProxmoxTemplate. The classes decide whether it needs a cloud-init
// drive: those that get their boot data on a drive of ours need none.
func NewDesired(template *v1alpha1.ProxmoxTemplate, classes []v1alpha1.ProxmoxNodeClass) Desired {
	w := Desired{
		Name: template.Name, UID: string(template.UID), Spec: template.Spec, Hash: template.Hash(),
		Deleted: !template.DeletionTimestamp.IsZero(), Revision: template.Generation,
	}
	for _, class := range classes {
		ref := class.Spec.InstanceTemplateRef
		if ref.Kind == v1alpha1.ProxmoxTemplateKind && ref.Name == template.Name && !class.Spec.MetadataOptions.Rendered() {
			w.CloudInit = true
		}
	}
	w.Settings = template.InPlaceHash()
	if w.CloudInit {
		w.Settings += "-cloudinit"
	}
	return w
}

// wants tells whether the wish is about a region.
func (w Desired) wants(region string) bool {
	return !w.Deleted && (w.Spec.Region == "" || w.Spec.Region == region)
}

// made tells whether a Template was made of what the wish asks for. Hashes of another
// version cannot be compared: a new release must not make every Template anew.
func (w Desired) made(mark ownership.Mark) bool {
	return mark.Hash == w.Hash || mark.HashVersion != v1alpha1.HashVersion
}

// Found is a Template or VM on Proxmox that carries the mark of a ProxmoxTemplate.
type Existing struct {
	Region, Host string
	VMID         int
	Mark         ownership.Mark
	Config       proxmox.VMConfig
}

// Zone of the Template, with the Host that it is on.
func (f Existing) Zone() v1alpha1.TemplateZone {
	return v1alpha1.TemplateZone{Region: f.Region, Host: f.Host, VMID: f.VMID}
}

// claim reads who a guest belongs to. False unless every part of the mark fits. What a
// later release made is left to it: a Template more costs less than one that is
// changed without being understood.
func claim(kubeCluster, uid string, guest inventory.Guest, region string, config proxmox.VMConfig) (Existing, bool) {
	mark, ok := ownership.Read(config.Description())
	if !ok || mark.Newer() || mark.VMID != guest.VMID || mark.KubeCluster != kubeCluster || mark.TemplateUID != uid || uid == "" {
		return Existing{}, false
	}
	return Existing{Region: region, Host: guest.Host, VMID: guest.VMID, Mark: mark, Config: config}, true
}

// Ours lists the finished Templates of a ProxmoxTemplate that the view shows, by
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
			if found, ok := claim(kubeCluster, uid, guest, region, *guest.Config); ok {
				out = append(out, found)
			}
		}
	}
	return out
}

// on keeps what is on one Host.
func on(found []Existing, region, host string) []Existing {
	return slices.DeleteFunc(slices.Clone(found), func(f Existing) bool { return f.Region != region || f.Host != host })
}

func (f Existing) String() string { return fmt.Sprintf("template %d on host %s", f.VMID, f.Host) }
