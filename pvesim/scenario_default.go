// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package pvesim

import (
	"fmt"
	"strings"
)

// The credentials of DefaultScenario.
const (
	DefaultTokenID     = "kubernetes@pve!karpenter"
	DefaultTokenSecret = "11111111-2222-3333-4444-555555555555"
	// RootPassword is the password of root@pam.
	RootPassword = "pvesim"
)

// rolePrivileges are the privileges that a cluster autoscaler needs on "/".
const rolePrivileges = `Datastore.Allocate Datastore.AllocateSpace Datastore.AllocateTemplate Datastore.Audit Sys.Audit
Sys.AccessNetwork SDN.Audit SDN.Use VM.Audit VM.Allocate VM.Clone VM.Config.CDROM VM.Config.CPU VM.Config.Memory
VM.Config.Disk VM.Config.Network VM.Config.HWType VM.Config.Cloudinit VM.Config.Options VM.PowerMgmt`

// DefaultScenario returns a small, complete cluster of version 8.4: hosts pve1 to pveN with 16 cores and 64 GiB each, local
// storages, a bridge, one template "ubuntu" per host (VMID 9000 and up), a few guests of other owners, and
// the token DefaultTokenID.
func DefaultScenario(hosts int) *Scenario {
	s := &Scenario{
		Version: "8.4", Cluster: "sim",
		Storages: []Storage{
			{ID: "local", Type: "dir", Content: []string{"iso", "import", "vztmpl", "snippets", "backup", "images"}, Size: 100 * GiB, Used: 8 * GiB},
			{ID: "local-lvm", Type: "lvmthin", Content: []string{"images", "rootdir"}, Size: 900 * GiB},
		},
		Roles: []Role{{ID: "Karpenter", Privileges: strings.Fields(rolePrivileges)}},
		Users: []User{
			{ID: "kubernetes@pve", Tokens: []Token{{ID: "karpenter", Secret: DefaultTokenSecret}}},
			{ID: "root@pam", Password: RootPassword, Email: "root@example.com"},
		},
		ACLs:           []ACL{{Path: "/", Role: "Karpenter", User: "kubernetes@pve"}},
		SecurityGroups: []SecurityGroup{{Name: "kubernetes"}},
	}
	if hosts == 1 {
		s.Cluster = ""
	}
	for i := range hosts {
		host := fmt.Sprintf("pve%d", i+1)
		s.Hosts = append(s.Hosts, Host{
			Name: host, Sockets: 1, Cores: 16, Threads: 1, Memory: 64 * GiB, Bridges: []Bridge{{Name: "vmbr0", Ports: "eno1", VLANAware: true}},
		})
		s.Guests = append(s.Guests, defaultTemplate(9000+i, host), defaultGuest(101+i, host))
	}
	return s
}

func defaultTemplate(vmid int, host string) Guest {
	return Guest{VMID: vmid, Name: "ubuntu", Host: host, Config: map[string]string{
		"template": "1", "memory": "2048", "cores": "2", "cpu": "x86-64-v2-AES", "ostype": "l26", "scsihw": "virtio-scsi-single",
		"scsi0":   fmt.Sprintf("local-lvm:base-%d-disk-0,size=3G", vmid),
		"ide2":    fmt.Sprintf("local-lvm:vm-%d-cloudinit,media=cdrom", vmid),
		"net0":    fmt.Sprintf("virtio=BC:24:11:00:%02X:%02X,bridge=vmbr0", vmid>>8&0xff, vmid&0xff),
		"serial0": "socket", "vga": "serial0", "agent": "enabled=1", "boot": "order=scsi0",
		"smbios1": fmt.Sprintf("uuid=00000000-0000-4000-8000-%012d", vmid),
	}}
}

func defaultGuest(vmid int, host string) Guest {
	return Guest{VMID: vmid, Name: fmt.Sprintf("office-%d", vmid), Host: host, Status: "running", Config: map[string]string{
		"memory": "4096", "cores": "2", "ostype": "l26", "onboot": "1",
		"scsi0":   fmt.Sprintf("local-lvm:vm-%d-disk-0,size=20G", vmid),
		"net0":    fmt.Sprintf("virtio=BC:24:11:01:%02X:%02X,bridge=vmbr0", vmid>>8&0xff, vmid&0xff),
		"boot":    "order=scsi0",
		"smbios1": fmt.Sprintf("uuid=00000000-0000-4000-9000-%012d", vmid),
	}}
}
