// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package pvesim

import (
	"cmp"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/diskfs/go-diskfs/backend/file"
	"github.com/diskfs/go-diskfs/filesystem/iso9660"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/kernel"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/qm"
)

// GuestRuntime runs the guest of a VM. The simulator calls Boot in a new goroutine each time a VM is powered on or
// rebooted.
type GuestRuntime interface {
	// Boot runs the guest until ctx is done (power cut, stop, host down). A guest that returns earlier powers itself off.
	Boot(ctx context.Context, m *Machine)
}

// Machine is the virtual hardware of one boot.
type Machine struct {
	Cluster, Host, Name string
	VMID                int
	UUID                string
	SMBIOS              map[string]string // decoded smbios1 fields: uuid, serial, sku, ...
	BootID              string            // new at each boot
	Arch                string            // x86_64 or aarch64
	Cores               int
	MemoryBytes         int64
	DiskBytes           int64
	NICs                []NIC
	Disk                GuestDisk // survives reboots, deleted with the VM's boot volume
	AgentEnabled        bool      // the VM has a guest agent channel
	// Firmware are the files that "args: -fw_cfg" passes to the guest, by name.
	Firmware map[string][]byte
	// Shares are the directories of virtiofs shares by tag.
	Shares map[string]string

	instance *kernel.Instance
	// sleep waits for a simulated time.
	sleep func(ctx context.Context, d time.Duration) error
}

// NIC is a network card.
type NIC struct {
	Name   string // net0, net1, ...
	MAC    string
	Bridge string
	VLAN   int
	// Lease is the DHCP lease on a virtual network where Proxmox itself assigns addresses; not valid elsewhere.
	Lease netip.Prefix
}

// CDROM is the medium in a CD-ROM drive.
type CDROM struct {
	Slot  string // ide2, scsi1, ...
	Volid string
	// Image is the medium: an uploaded ISO, or the one that Proxmox generates for a cloud-init drive.
	Image []byte
}

// GuestDisk stores named files on a VM's boot disk.
type GuestDisk interface {
	Read(name string) ([]byte, bool)
	Write(name string, data []byte)
	Names() []string
}

// Agent is the data that the guest agent reports.
type Agent struct {
	Hostname   string
	OS         map[string]string
	Interfaces []AgentInterface
	// ReadFile returns the content of a file of the guest, and fs.ErrNotExist if it does not exist. Without it, the guest
	// has no files.
	ReadFile func(ctx context.Context, name string) ([]byte, error)
}

// AgentInterface is a network interface as the guest sees it; addresses have the form "10.0.0.5/24".
type AgentInterface struct {
	Name, MAC string
	Addresses []string
}

// CDROMs returns the current media: they can change while the VM runs.
func (m *Machine) CDROMs() []CDROM {
	var out []CDROM
	for _, medium := range m.instance.Media() {
		cd := CDROM{Slot: medium.Slot, Volid: medium.Volume, Image: medium.Data}
		if medium.CloudInit != nil {
			image, err := buildISO("cidata", medium.CloudInit)
			if err != nil {
				continue // the guest sees an empty drive
			}
			cd.Image = image
		}
		out = append(out, cd)
	}
	return out
}

// buildISO returns an ISO image with the given label and files.
func buildISO(label string, files map[string]string) ([]byte, error) {
	dir, err := os.MkdirTemp("", "pvesim-iso-")
	if err != nil {
		return nil, fmt.Errorf("building ISO: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	image := filepath.Join(dir, "image.iso")
	if err := writeISO(image, filepath.Join(dir, "work"), label, files); err != nil {
		return nil, fmt.Errorf("building ISO: %w", err)
	}
	return os.ReadFile(image) //nolint:gosec // written above
}

func writeISO(image, work, label string, files map[string]string) (err error) {
	if err := os.Mkdir(work, 0o700); err != nil {
		return err
	}
	const size, block = 4 << 20, 2048
	out, err := file.CreateFromPath(image, size)
	if err != nil {
		return err
	}
	defer func() {
		if cerr := out.Close(); err == nil {
			err = cerr
		}
	}()
	fs, err := iso9660.Create(out, size, 0, block, work)
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		f, err := fs.OpenFile("/"+name, os.O_CREATE|os.O_RDWR)
		if err != nil {
			return err
		}
		if _, err := io.WriteString(f, files[name]); err != nil {
			return err
		}
		if err := f.Close(); err != nil {
			return err
		}
	}
	return fs.Finalize(iso9660.FinalizeOptions{RockRidge: true, Joliet: true, VolumeIdentifier: label})
}

// Disk is a disk of the VM.
type Disk struct {
	Slot  string // scsi0, virtio0, efidisk0, ...
	Volid string
	Bytes int64
	// Path is the file for the disk's content, which the runtime creates as an overlay of Base. The simulator removes it
	// with the volume. It is empty without Options.Dir.
	Path string
	// Base is the content before the first boot: the image that the volume was imported from, or the content of the
	// volume that it was cloned from. It is empty for an empty disk.
	Base string
}

// Disks returns the current disks: they can be resized, added and removed while the VM runs.
func (m *Machine) Disks() []Disk {
	var out []Disk
	for _, d := range m.instance.Drives() {
		out = append(out, Disk{Slot: d.Slot, Volid: d.Volume, Bytes: d.Size, Path: d.Path, Base: d.Base})
	}
	return out
}

// Options returns the current options of the VM in Proxmox's format, such as "scsihw". Pending changes are not included.
func (m *Machine) Options() map[string]string {
	options, _ := m.instance.Current()
	return options
}

// Paused reports whether the VM is suspended.
func (m *Machine) Paused() bool {
	_, paused := m.instance.Current()
	return paused
}

// Updated returns a channel that is closed when the options, the media, the disks or the pause state of the VM change.
func (m *Machine) Updated() <-chan struct{} { return m.instance.Updated() }

// ShutdownRequested returns a channel that is closed on an ACPI shutdown or when the guest agent receives a shutdown or
// reboot request.
func (m *Machine) ShutdownRequested() <-chan struct{} { return m.instance.ShutdownRequested() }

// Health is the injected health of a guest.
type Health string

// Health states.
const (
	HealthWell Health = kernel.Well
	// HealthSick is a guest that responds but whose kubelet reports the Node as NotReady.
	HealthSick Health = kernel.Sick
	// HealthHung is a guest that does not respond until it is reset or stopped.
	HealthHung Health = kernel.Hung
)

// Health returns the current health of the guest and a channel that is closed when it changes.
func (m *Machine) Health() (Health, <-chan struct{}) {
	health, changed := m.instance.Health()
	return Health(health), changed
}

// SetAgent starts the guest agent; nil stops it. The agent responds only if it is enabled in the VM's config.
func (m *Machine) SetAgent(a *Agent) {
	if a == nil {
		m.instance.SetAgent(nil)
		return
	}
	out := &kernel.Agent{Hostname: a.Hostname, OS: a.OS, ReadFile: a.ReadFile}
	for _, i := range a.Interfaces {
		var addresses []map[string]any
		for _, cidr := range i.Addresses {
			ip, bits, _ := strings.Cut(cidr, "/")
			family := "ipv4"
			if strings.Contains(ip, ":") {
				family = "ipv6"
			}
			prefix, _ := strconv.Atoi(bits) // a missing prefix length is zero
			addresses = append(addresses, map[string]any{"ip-address": ip, "ip-address-type": family, "prefix": prefix})
		}
		row := map[string]any{"name": i.Name, "hardware-address": strings.ToLower(i.MAC)}
		if addresses != nil {
			row["ip-addresses"] = addresses
		}
		out.Interfaces = append(out.Interfaces, row)
	}
	m.instance.SetAgent(out)
}

func newMachine(cluster string, in *kernel.Instance) *Machine {
	c := qm.New(in.Options)
	m := &Machine{
		Cluster: cluster, Host: in.Host, Name: in.Name, VMID: in.VMID, BootID: in.BootID, Disk: in.Disk, Firmware: in.Firmware, Shares: in.Shares, instance: in,
		Arch:   cmp.Or(in.Arch, "x86_64"),
		SMBIOS: smbios(in.Options["smbios1"]), Cores: int(c.Int("cores", 1) * c.Int("sockets", 1)), MemoryBytes: c.Int("memory", 512) << 20,
		AgentEnabled: strings.HasPrefix(in.Options["agent"], "1") || strings.Contains(in.Options["agent"], "enabled=1"),
	}
	m.UUID = m.SMBIOS["uuid"]
	for _, key := range append(qm.BootOrder(in.Options["boot"]), qm.DriveKeys(in.Options)...) {
		if d, ok := qm.ParseDrive(key, in.Options[key]); ok && !d.IsCDROM() && m.DiskBytes == 0 {
			m.DiskBytes, _ = qm.ParseSize(d.Opts["size"])
		}
	}
	for _, key := range qm.NetKeys(in.Options) {
		n := qm.ParseNet(in.Options[key])
		m.NICs = append(m.NICs, NIC{Name: key, MAC: n.MAC, Bridge: n.Opts["bridge"], VLAN: int(qm.Number(n.Opts["tag"], 0)), Lease: in.Lease(n.Opts["bridge"], n.MAC)})
	}
	return m
}

// smbios decodes the fields of smbios1; base64=1 marks them as encoded.
func smbios(v string) map[string]string {
	fields := qm.ParseFields(v)
	if fields["base64"] == "1" {
		for k, enc := range fields {
			if raw, err := base64.StdEncoding.DecodeString(enc); err == nil && k != "uuid" && k != "base64" {
				fields[k] = string(raw)
			}
		}
	}
	delete(fields, "base64")
	return fields
}

// CooperativeGuests run no operating system and power off on shutdown requests. It is the default runtime.
type CooperativeGuests struct{}

// Boot blocks until a shutdown is requested or the VM is powered off.
func (CooperativeGuests) Boot(ctx context.Context, m *Machine) {
	for {
		health, changed := m.Health()
		shutdown := m.ShutdownRequested()
		if health == HealthHung {
			shutdown = nil
		}
		select {
		case <-ctx.Done():
			return
		case <-shutdown:
			return
		case <-changed:
		}
	}
}

// UnresponsiveGuests ignore shutdown requests: a shutdown times out, as with a VM without an operating system.
type UnresponsiveGuests struct{}

// Boot blocks until the VM is powered off.
func (UnresponsiveGuests) Boot(ctx context.Context, _ *Machine) { <-ctx.Done() }
