// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package template

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// cloudInitSlot is where Proxmox's own dialogs put the cloud-init drive.
const cloudInitSlot = "ide2"

// settings are the options that follow the spec in place, in Proxmox's own words.
func settings(w Desired, place Location) map[string]string {
	spec := w.Spec
	options := map[string]string{"machine": spec.Machine, "cpu": cpu(spec.CPU)}
	if spec.Agent != nil {
		options["agent"] = agent(*spec.Agent)
	}
	if spec.VGA != nil {
		options["vga"] = vga(*spec.VGA)
		if spec.VGA.Type == "serial0" {
			options["serial0"] = "socket"
		}
	}
	var servers []string
	for n, nic := range spec.Network {
		name := nic.Name
		if name == "" {
			name = "net" + strconv.Itoa(n)
		}
		options[name] = network(nic)
		if addresses := addresses(nic); addresses != "" {
			options["ipconfig"+strings.TrimPrefix(name, "net")] = addresses
		}
		servers = append(servers, nic.DNSServers...)
	}
	if len(servers) > 0 {
		options["nameserver"] = strings.Join(servers, " ")
	}
	for n, device := range spec.PCIDevices {
		options["hostpci"+strconv.Itoa(n)] = pci(device)
	}
	if spec.OnBoot != nil {
		options["onboot"] = bit(*spec.OnBoot)
	}
	if len(spec.Tags) > 0 {
		options["tags"] = strings.Join(spec.Tags, ";")
	}
	if w.CloudInit {
		options[cloudInitSlot] = place.Storage + ":cloudinit"
	}
	return options
}

// ruled are the options that belong to the spec alone: what it does not ask for goes.
var ruled = regexp.MustCompile(`^(net|ipconfig|hostpci|serial)[0-9]+$|^(agent|vga|nameserver|onboot|tags|` + cloudInitSlot + `)$`)

// creation are the options of a new VM. Tags are not among them: 9.2 asks for a
// privilege on the VM itself before it is in its pool, so they come with the settings.
func creation(w Desired, place Location, volume string, mark ownership.Mark) map[string]string {
	options := settings(w, place)
	delete(options, "tags")
	disk := place.Storage + ":0,import-from=" + volume + ",discard=on,iothread=1"
	for option, value := range map[string]string{
		"name": w.Name, "description": notes(w, mark), "ostype": "l26", "scsihw": "virtio-scsi-single", "bios": w.Spec.BIOS,
		"scsi0": disk, "boot": "order=scsi0", "cores": "1", "sockets": "1", "numa": "1", "memory": "1024", "balloon": "0",
	} {
		if value != "" {
			options[option] = value
		}
	}
	if w.Spec.BIOS == "ovmf" {
		// No enrolled keys: not every image has a signed boot loader.
		options["efidisk0"] = place.Storage + ":1,efitype=4m,pre-enrolled-keys=0"
	}
	if w.Spec.TPM != nil {
		options["tpmstate0"] = place.Storage + ":1,version=" + w.Spec.TPM.Version
	}
	return options
}

func notes(w Desired, mark ownership.Mark) string {
	words := w.Spec.Description
	if words == "" {
		words = "Karpenter managed template, made from " + w.Spec.SourceImage.URL
	}
	return mark.Notes(words)
}

// change is what turns a configuration into what the spec asks for.
func change(w Desired, place Location, config proxmox.VMConfig, mark ownership.Mark) proxmox.ConfigChange {
	c := proxmox.ConfigChange{Set: settings(w, place), Digest: config.Digest}
	if drive, ok := config.Drives().Find(cloudInitSlot); ok && drive.IsCloudInit && w.CloudInit {
		delete(c.Set, cloudInitSlot) // it would be made anew
	}
	for option := range config.Options {
		if _, set := c.Set[option]; !set && ruled.MatchString(option) && !(option == cloudInitSlot && w.CloudInit) {
			c.Delete = append(c.Delete, option)
		}
	}
	slices.Sort(c.Delete)
	c.Set["description"] = notes(w, mark)
	return c
}

func cpu(c v1alpha1.CPU) string {
	if len(c.Flags) == 0 {
		return c.Type
	}
	return c.Type + ",flags=" + strings.Join(c.Flags, ";")
}

func agent(a v1alpha1.Agent) string {
	out := "enabled=" + bit(a.Enabled)
	if a.Type == "isa" {
		out += ",type=isa"
	}
	if a.FSFreezeOnBackup != nil {
		// 9.1 has a new name for it and still takes this one.
		out += ",freeze-fs-on-backup=" + bit(*a.FSFreezeOnBackup)
	}
	if a.FSTrimClonedDisks != nil {
		out += ",fstrim_cloned_disks=" + bit(*a.FSTrimClonedDisks)
	}
	return out
}

func vga(v v1alpha1.VGA) string {
	if v.Memory == nil {
		return v.Type
	}
	return fmt.Sprintf("%s,memory=%d", v.Type, *v.Memory)
}

// defaultMTU is what a guest takes by itself; told to, Proxmox would hold it against
// the bridge's.
const defaultMTU = 1500

func network(n v1alpha1.NetworkInterface) string {
	out := n.Model + ",bridge=" + n.Bridge
	if n.Firewall != nil {
		out += ",firewall=" + bit(*n.Firewall)
	}
	if n.MTU != 0 && n.MTU != defaultMTU && n.Model == "virtio" {
		out += fmt.Sprintf(",mtu=%d", n.MTU)
	}
	if n.VLAN != 0 {
		out += fmt.Sprintf(",tag=%d", n.VLAN)
	}
	return out
}

func addresses(n v1alpha1.NetworkInterface) string {
	var parts []string
	for _, part := range [][2]string{{"ip", n.Address4}, {"gw", n.Gateway4}, {"ip6", n.Address6}, {"gw6", n.Gateway6}} {
		if part[1] != "" {
			parts = append(parts, part[0]+"="+part[1])
		}
	}
	return strings.Join(parts, ",")
}

func pci(d v1alpha1.PCIDevice) string {
	out := "mapping=" + d.Mapping
	if d.MDev != "" {
		out += ",mdev=" + d.MDev
	}
	if d.PCIe != nil {
		out += ",pcie=" + bit(*d.PCIe)
	}
	if d.XVGA != nil {
		out += ",x-vga=" + bit(*d.XVGA)
	}
	return out
}

func bit(b bool) string {
	if b {
		return "1"
	}
	return "0"
}
