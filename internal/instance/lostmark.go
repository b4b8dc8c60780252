// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"cmp"
	"fmt"
	"path"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/vmconfig"
)

// HasLostMark reports whether the VM is that of this Claim by its name, serial or UUID, although its notes
// have no ownership mark, or another one. Such a VM exists, but it is not changed.
func (id Identity) HasLostMark(cfg proxmox.VMConfig) bool {
	owns, _ := id.Owns(cfg)
	return !owns && !id.HasNewerMark(cfg) && id.isNamedBy(cfg)
}

// isNamedBy reports whether the name, the serial or the UUID of a VM that is no template names the Claim.
func (id Identity) isNamedBy(cfg proxmox.VMConfig) bool {
	named := id.ClaimName != "" && (cfg.Name() == id.ClaimName || cfg.SMBIOS().Serial == vmconfig.SMBIOSSerial(id.ClaimName, id.VMID))
	return !cfg.IsTemplate() && (named || strings.EqualFold(cfg.SMBIOS().UUID, id.uuid()))
}

// LostMarkMessage explains how to restore the mark of a VM that has lost it. The guest is the VM as of
// the last poll.
func (id Identity) LostMarkMessage(host string, cfg proxmox.VMConfig, guest observed.Guest) string {
	mark, rebuilt := id.lastMark(guest), ""
	if mark == "" {
		mark, rebuilt = id.rebuildMark(cfg).Comment(), " (rebuilt from its configuration, without its template, what was applied, dedicated CPUs and hook scripts)"
	}
	return fmt.Sprintf("the notes of VM %d on host %s have lost the ownership mark or have another one, and such a VM is not destroyed; append this line to the notes%s, or delete the VM by hand; "+
		"append it in the web interface, because qm set --description replaces all notes: %s", id.VMID, host, rebuilt, mark)
}

// lastMark returns the last known mark of the VM as a comment; empty if it is unknown.
func (id Identity) lastMark(guest observed.Guest) string {
	notes := []string{guest.LastNotes}
	if guest.Config != nil {
		notes = append(notes, guest.Config.Description())
	}
	for _, text := range notes {
		mark, ok := ownership.Read(text)
		if ok && !mark.Newer() && mark.VMID == id.VMID && mark.ClaimUID == id.ClaimUID && mark.KubeCluster == id.KubeCluster {
			return mark.Comment()
		}
	}
	return ""
}

// rebuildMark returns the mark that the VM should have, as far as its configuration shows it.
func (id Identity) rebuildMark(cfg proxmox.VMConfig) ownership.Mark {
	mark := id.newMark(id.ClaimName)
	if uuid := strings.ToLower(cfg.SMBIOS().UUID); uuid != strings.ToLower(id.ClaimUID) {
		mark.UUID = uuid
	}
	prefix := retainedPrefix(id.KubeCluster)
	for _, drive := range cfg.Drives().All() {
		_, volume, _ := strings.Cut(drive.VolumeID, ":")
		machine, disk, ok := strings.Cut(strings.TrimPrefix(strings.TrimSuffix(path.Base(volume), ".raw"), prefix), "_")
		if ok && strings.HasPrefix(path.Base(volume), prefix) {
			mark.Machine, mark.Retained = machine, append(mark.Retained, disk)
		}
	}
	// A launch writes the name of the Node to both.
	if named := cfg.SMBIOS().Serial == vmconfig.SMBIOSSerial(cfg.Name(), id.VMID); named && id.ClaimName != "" && cfg.Name() != id.ClaimName {
		mark.Machine = cmp.Or(mark.Machine, cfg.Name())
	}
	return mark
}
