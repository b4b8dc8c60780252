// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/qm"
)

// hardware is the input of QEMU's command line.
type hardware struct {
	name    string
	options map[string]string // the VM's options in Proxmox's format
	smbios  map[string]string // decoded fields of smbios1
	// disks and media are files by slot. CD-ROM drives without a medium are in options only.
	disks, media map[string]string
	firmware     map[string]string // files of the fw_cfg interface by name
	code, vars   string            // files of the UEFI firmware and of its variables
	sockets      map[string]string // of the network, by NIC; without one, a NIC has its own user-mode network
	shares       []share
	console      string // log file
	socket       string // socket of the serial console
	kvm          bool
	kernel       directKernel
}

// directKernel is a kernel that QEMU loads itself. It is not used if path is empty.
type directKernel struct{ path, initrd, args string }

// File descriptors that QEMU inherits.
const (
	monitorFD = 3
	agentFD   = 4
)

// agentPort is the ID of the device of the guest agent.
const agentPort = "qga"

// arguments returns QEMU's command line. Device IDs, buses and addresses are those of Proxmox, so guests find the same
// device names, for example ens18 (pc) and enp6s18 (q35).
func (h *hardware) arguments() []string {
	a := &arguments{q35: isQ35(h.options["machine"]), order: bootOrder(h.options)}
	a.add("-name", escape(h.name)+",debug-threads=on", "-nodefaults", "-no-user-config", "-display", "none", "-boot", "strict=on")
	h.addPlatform(a)
	h.addConsole(a)
	h.addDrives(a)
	h.addNICs(a)
	h.addShares(a) // at addresses that are free
	for _, name := range slices.Sorted(maps.Keys(h.firmware)) {
		a.add("-fw_cfg", "name="+escape(name)+",file="+escape(h.firmware[name]))
	}
	if h.kernel.path != "" {
		a.add("-kernel", h.kernel.path, "-append", h.kernel.args)
		if h.kernel.initrd != "" {
			a.add("-initrd", h.kernel.initrd)
		}
	}
	return a.list
}

// arguments is a command line under construction.
type arguments struct {
	list  []string
	q35   bool
	order map[string]int
}

func (a *arguments) add(args ...string) { a.list = append(a.list, args...) }

// device adds a device.
func (a *arguments) device(format string, args ...any) {
	a.add("-device", fmt.Sprintf(format, args...))
}

// bootIndex returns the boot index of a device as part of its arguments.
func (a *arguments) bootIndex(key string) string {
	if i, ok := a.order[key]; ok {
		return ",bootindex=" + strconv.Itoa(i)
	}
	return ""
}

func isQ35(machine string) bool { return strings.Contains(machine, "q35") }

// bootOrder returns the boot indexes of the devices.
func bootOrder(options map[string]string) map[string]int {
	order := qm.BootOrder(options["boot"])
	if order == nil {
		order = qm.BootOrder(qm.DefaultBootOrder(options))
	}
	out := map[string]int{}
	for i, key := range order {
		out[key] = 100 + i
	}
	return out
}

// escape doubles commas, which separate arguments.
func escape(v string) string { return strings.ReplaceAll(v, ",", ",,") }

// addPlatform adds machine, CPU, memory, firmware and the devices that every VM has.
func (h *hardware) addPlatform(a *arguments) {
	c := qm.New(h.options)
	machine, smm := "pc", ""
	if a.q35 {
		machine = "q35"
		if isSecureBoot(h.options) {
			smm = ",smm=on"
			a.add("-global", "driver=cfi.pflash01,property=secure,value=on")
		}
	}
	a.add("-machine", "type="+machine+smm)
	if h.kvm {
		a.add("-accel", "kvm", "-cpu", "host")
	} else {
		a.add("-accel", "tcg,thread=multi,tb-size=512", "-cpu", "max")
	}
	sockets, cores := c.Int("sockets", 1), c.Int("cores", 1)
	online := c.Int("vcpus", sockets*cores)
	a.add("-smp", fmt.Sprintf("%d,sockets=%d,cores=%d,maxcpus=%d", min(online, sockets*cores), sockets, cores, sockets*cores))
	a.add("-m", strconv.FormatInt(c.Int("memory", 512), 10))
	if h.code != "" {
		a.add("-drive", "if=pflash,unit=0,format=raw,readonly=on,file="+escape(h.code))
		a.add("-drive", "if=pflash,unit=1,format=raw,file="+escape(h.vars))
	}
	if fields := h.smbiosFields(); fields != "" {
		a.add("-smbios", "type=1"+fields)
	}
	h.addBuses(a)
	if id := h.options["vmgenid"]; id != "" {
		a.device("vmgenid,guid=%s", id)
	}
	if v := h.options["vga"]; !strings.HasPrefix(v, "serial") && v != "none" {
		a.device("VGA,id=vga,bus=%s", map[bool]string{true: "pcie.0,addr=0x1", false: "pci.0,addr=0x2"}[a.q35])
	}
	if c.Int("balloon", 1) != 0 {
		a.device("virtio-balloon-pci,id=balloon0,bus=pci.0,addr=0x3,free-page-reporting=on")
	}
	if source, ok := h.options["rng0"]; ok {
		a.add("-object", "rng-random,filename="+escape(rngSource(source))+",id=rng0")
		a.device("virtio-rng-pci,rng=rng0,bus=pci.1,addr=0x1d")
	}
}

// rngSource returns the device of the host that an rng0 option names. QEMU does not need a hardware generator for the
// same effect in the guest.
func rngSource(v string) string {
	if qm.ParseFields(v)["source"] == "/dev/random" {
		return "/dev/random"
	}
	return "/dev/urandom"
}

func isSecureBoot(options map[string]string) bool {
	return options["bios"] == "ovmf" && qm.ParseFields(options["efidisk0"])["pre-enrolled-keys"] == "1"
}

func (h *hardware) smbiosFields() string {
	var out strings.Builder
	for _, key := range []string{"uuid", "manufacturer", "product", "version", "serial", "sku", "family"} {
		if v := h.smbios[key]; v != "" {
			out.WriteString("," + key + "=" + escape(v))
		}
	}
	return out.String()
}

// addBuses adds the PCI bridges.
func (h *hardware) addBuses(a *arguments) {
	if a.q35 {
		for i := range 4 {
			a.device("pcie-root-port,id=ich9-pcie-port-%d,multifunction=on,bus=pcie.0,addr=0x1c.%d,port=%d,chassis=%d", i+1, i, i+1, i+1)
		}
		a.device("i82801b11-bridge,id=pcidmi,bus=pcie.0,addr=0x1e")
		for i := range 3 {
			a.device("pci-bridge,id=pci.%d,chassis_nr=%d,bus=pcidmi,addr=0x%x", i, i+1, i+1)
		}
	} else {
		a.device("pci-bridge,id=pci.1,chassis_nr=1,bus=pci.0,addr=0x1e")
		a.device("pci-bridge,id=pci.2,chassis_nr=2,bus=pci.0,addr=0x1f")
	}
	if h.options["scsihw"] == singleController {
		a.device("pci-bridge,id=pci.3,chassis_nr=5,bus=pci.0,addr=0x5")
	}
}

// addConsole adds monitor, serial console and the channel of the guest agent. The console exists even if the VM has no
// serial port: it is the only output.
func (h *hardware) addConsole(a *arguments) {
	a.add("-chardev", fmt.Sprintf("socket,id=qmp,fd=%d", monitorFD), "-mon", "chardev=qmp,mode=control")
	a.add("-chardev", fmt.Sprintf("socket,id=serial0,path=%s,server=on,wait=off,logfile=%s,logappend=on", escape(h.socket), escape(h.console)))
	a.device("isa-serial,chardev=serial0")
	if qm.AgentEnabled(h.options["agent"]) {
		a.add("-chardev", fmt.Sprintf("socket,id=%s,fd=%d", agentPort, agentFD))
		a.device("virtio-serial,id=qga0,bus=pci.0,addr=0x8")
		a.device("virtserialport,id=%s,chardev=%s,name=org.qemu.guest_agent.0", agentPort, agentPort)
	}
}

var nicModels = map[string]string{"virtio": "virtio-net-pci"}

// addNICs adds the network devices.
func (h *hardware) addNICs(a *arguments) {
	for _, key := range qm.NetKeys(h.options) {
		n := qm.ParseNet(h.options[key])
		index, _ := strconv.Atoi(strings.TrimPrefix(key, "net"))
		backend := "user,id=" + key
		if socket := h.sockets[key]; socket != "" {
			backend = "stream,id=" + key + ",server=off,addr.type=unix,addr.path=" + escape(socket)
		}
		a.add("-netdev", backend)
		model := cmp.Or(nicModels[n.Model], n.Model)
		bus := fmt.Sprintf("pci.0,addr=0x%x", 0x12+index)
		if index > 5 {
			bus = fmt.Sprintf("pci.1,addr=0x%x", index-5)
		}
		mtu := ""
		if v := qm.Number(n.Opts["mtu"], 0); v > 1 && n.Model == "virtio" {
			mtu = fmt.Sprintf(",host_mtu=%d", v)
		}
		// Without a ROM: VMs do not boot from the network, and the ROM is in a package that QEMU only recommends.
		a.device("%s,id=%s,mac=%s,netdev=%s,bus=%s,romfile=%s%s", model, key, n.MAC, key, bus, mtu, a.bootIndex(key))
	}
}
