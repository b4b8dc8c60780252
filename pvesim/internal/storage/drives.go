// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package storage

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/kernel"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/qm"
)

// CreateMissingVolume creates the volume of a drive if it does not exist.
func (st *Store) CreateMissingVolume(g *kernel.Guest, key string) error {
	d, ok := qm.ParseDrive(key, g.Config.Options[key])
	if !ok {
		return fmt.Errorf("drive %s: cannot read %q", key, g.Config.Options[key])
	}
	if !d.HasVolume() {
		return nil
	}
	s := st.Storage(d.Storage())
	if s == nil {
		return fmt.Errorf("drive %s: there is no storage %q", key, d.Storage())
	}
	if st.Volume(g.Host, d.File) != nil {
		return nil
	}
	size, _ := qm.ParseSize(d.Opts["size"])
	if size == 0 && d.IsCloudInit() {
		size = cloudInitSize
	}
	used := size
	if s.Kind().thin {
		used = size / 2 // thin volumes are rarely full
	}
	st.PutVolume(&Volume{Storage: s.ID, Host: g.Host, Name: d.File[len(s.ID)+1:], Size: size, Used: used, Owner: g.VMID})
	return nil
}

// ReleaseDrive releases the volume of a drive that a VM no longer uses. Cloud-init drives and unused disks are removed,
// other disks become "unusedN".
func (st *Store) ReleaseDrive(g *kernel.Guest, opt, old, now string, force bool) {
	unused := strings.HasPrefix(opt, "unused")
	if old == "" || (!qm.IsDriveKey(opt) && !unused) {
		return
	}
	was, _ := qm.ParseDrive(opt, old)
	is, _ := qm.ParseDrive(opt, now)
	v := st.Volume(g.Host, was.File)
	if was.File == is.File || v == nil || v.Content() != "images" || v.Owner != g.VMID {
		return
	}
	if unused || force || was.IsCloudInit() {
		st.RemoveVolume(g.Host, was.File)
		return
	}
	for i := range 256 {
		key := "unused" + strconv.Itoa(i)
		if _, taken := g.Config.Options[key]; !taken {
			g.Config.Options[key] = was.File
			return
		}
	}
}

// CheckVolume returns an error if a volume does not exist on a host.
func (st *Store) CheckVolume(host, volid string) error {
	id, _, _ := strings.Cut(volid, ":")
	if _, err := st.CheckStorage(id, host); err != nil {
		return err
	}
	if st.Volume(host, volid) == nil {
		return api.Failf("volume '%s' does not exist", volid)
	}
	return nil
}
