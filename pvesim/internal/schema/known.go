// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package schema

import "strings"

// Formats that the published schema references but does not describe.

func text(optional bool) *Property { return &Property{Type: "string", Optional: optional} }
func formatted(format string) *Property {
	return &Property{Type: "string", Optional: true, Format: format}
}
func flag() *Property                           { return &Property{Type: "boolean", Optional: true} }
func number() *Property                         { return &Property{Type: "integer", Optional: true} }
func matching(p *Property, re string) *Property { p.Pattern = re; return p }

func asDefault(p *Property) *Property { p.DefaultKey = true; return p }

func needs(p *Property, other string) *Property { p.Requires = other; return p }

const base64Text = `[A-Za-z0-9+/]+={0,2}`

var cpuFields = map[string]*Property{
	"cputype": asDefault(text(true)), "flags": text(true), "hidden": flag(), "hv-vendor-id": text(true),
	"phys-bits": text(true), "reported-model": text(true), "guest-phys-bits": number(), "level": number(),
}

var bootFields = map[string]*Property{
	"legacy": matching(asDefault(text(true)), `[acdn]{1,4}`), "order": text(true),
}

var objectFormats = compiled(map[string]map[string]*Property{
	"pve-qm-ipconfig": {
		"ip": formatted("pve-ipv4-config"), "gw": needs(formatted("ipv4"), "ip"),
		"ip6": formatted("pve-ipv6-config"), "gw6": needs(formatted("ipv6"), "ip6"),
	},
	"pve-qm-cicustom": {
		"meta": formatted("pve-volume-id"), "network": formatted("pve-volume-id"), "user": formatted("pve-volume-id"),
		"vendor": formatted("pve-volume-id"),
	},
	"pve-qm-smbios1": {
		"uuid":         matching(text(true), `[a-fA-F0-9]{8}(?:-[a-fA-F0-9]{4}){3}-[a-fA-F0-9]{12}`),
		"base64":       flag(),
		"version":      matching(text(true), base64Text),
		"serial":       matching(text(true), base64Text),
		"manufacturer": matching(text(true), base64Text),
		"product":      matching(text(true), base64Text),
		"sku":          matching(text(true), base64Text),
		"family":       matching(text(true), base64Text),
	},
	"pve-qm-hostpci": {
		"host": asDefault(text(true)), "mapping": text(true), "rombar": flag(), "romfile": text(true), "pcie": flag(),
		"x-vga": flag(), "legacy-igd": flag(), "mdev": text(true), "vendor-id": text(true), "device-id": text(true),
		"sub-vendor-id": text(true), "sub-device-id": text(true), "driver": text(true),
	},
	"pve-qm-rng": {
		"source":    {Type: "string", DefaultKey: true, Enum: []string{"/dev/urandom", "/dev/random", "/dev/hwrng"}},
		"max_bytes": number(), "period": number(),
	},
	"pve-qm-watchdog": {
		"model": {Type: "string", Optional: true, DefaultKey: true, Enum: []string{"i6300esb", "ib700"}},
		"action": {
			Type: "string", Optional: true,
			Enum: []string{"reset", "shutdown", "poweroff", "pause", "debug", "none"},
		},
	},
	"pve-qemu-sev-fmt": {
		"type": {Type: "string", DefaultKey: true, Enum: []string{"std", "es", "snp"}}, "no-debug": flag(),
		"no-key-sharing": flag(), "kernel-hashes": flag(), "allow-smt": flag(),
	},
	"pve-qemu-tdx-fmt": {
		"type": asDefault(text(false)), "attestation": flag(), "vsock-cid": number(), "vsock-port": number(),
	},
})

func compiled(all map[string]map[string]*Property) map[string]map[string]*Property {
	for _, fields := range all {
		for _, f := range fields {
			if err := f.compile(); err != nil {
				panic(err) // a constant pattern in this file is invalid
			}
		}
	}
	return all
}

const commonPrivileges = `Datastore.Allocate Datastore.AllocateSpace Datastore.AllocateTemplate Datastore.Audit
Group.Allocate Mapping.Audit Mapping.Modify Mapping.Use Permissions.Modify Pool.Allocate Pool.Audit Realm.Allocate
Realm.AllocateUser SDN.Allocate SDN.Audit SDN.Use Sys.AccessNetwork Sys.Audit Sys.Console Sys.Incoming Sys.Modify
Sys.PowerMgmt Sys.Syslog User.Modify VM.Allocate VM.Audit VM.Backup VM.Clone VM.Config.CDROM VM.Config.CPU
VM.Config.Cloudinit VM.Config.Disk VM.Config.HWType VM.Config.Memory VM.Config.Network VM.Config.Options VM.Console
VM.Migrate VM.PowerMgmt VM.Snapshot VM.Snapshot.Rollback`

// Privileges returns all privileges of a version in order.
func Privileges(version string) []string {
	extra := "VM.Monitor"
	if strings.HasPrefix(version, "9") {
		extra = "VM.Replicate VM.GuestAgent.Audit VM.GuestAgent.FileRead VM.GuestAgent.FileWrite " +
			"VM.GuestAgent.FileSystemMgmt VM.GuestAgent.Unrestricted"
	}
	return strings.Fields(commonPrivileges + " " + extra)
}

// CPUVendors are the CPU models of Proxmox and their vendors. Models of the vendor "default" run on all hosts.
var CPUVendors = vendors(map[string]string{
	"AuthenticAMD": `EPYC EPYC-Genoa EPYC-IBPB EPYC-Milan EPYC-Milan-v2 EPYC-Rome EPYC-Rome-v2 EPYC-Rome-v3 EPYC-Rome-v4
EPYC-v3 EPYC-v4 Opteron_G1 Opteron_G2 Opteron_G3 Opteron_G4 Opteron_G5 athlon phenom`,
	"GenuineIntel": `486 Broadwell Broadwell-IBRS Broadwell-noTSX Broadwell-noTSX-IBRS Cascadelake-Server
Cascadelake-Server-noTSX Cascadelake-Server-v2 Cascadelake-Server-v4 Cascadelake-Server-v5 Conroe Cooperlake Cooperlake-v2
GraniteRapids Haswell Haswell-IBRS Haswell-noTSX Haswell-noTSX-IBRS Icelake-Client Icelake-Client-noTSX Icelake-Server
Icelake-Server-noTSX Icelake-Server-v3 Icelake-Server-v4 Icelake-Server-v5 Icelake-Server-v6 IvyBridge IvyBridge-IBRS
KnightsMill Nehalem Nehalem-IBRS Penryn SandyBridge SandyBridge-IBRS SapphireRapids SapphireRapids-v2 Skylake-Client
Skylake-Client-IBRS Skylake-Client-noTSX-IBRS Skylake-Client-v4 Skylake-Server Skylake-Server-IBRS
Skylake-Server-noTSX-IBRS Skylake-Server-v4 Skylake-Server-v5 Westmere Westmere-IBRS core2duo coreduo pentium pentium2
pentium3`,
	"default": `host kvm32 kvm64 max qemu32 qemu64 x86-64-v2 x86-64-v2-AES x86-64-v3 x86-64-v4`,
})

func vendors(byVendor map[string]string) map[string]string {
	out := map[string]string{}
	for vendor, models := range byVendor {
		for _, m := range strings.Fields(models) {
			out[m] = vendor
		}
	}
	return out
}
