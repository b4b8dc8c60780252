// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package schema

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
)

// formatRule is a format that one pattern describes. The text can contain %s for the value.
type formatRule struct {
	pattern *regexp.Regexp
	text    string
}

func rule(pattern, text string) formatRule {
	return formatRule{pattern: regexp.MustCompile(`^(?:` + pattern + `)$`), text: text}
}

const (
	dnsLabel   = `[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?`
	storageRef = `[a-zA-Z][a-zA-Z0-9\-_.]*[a-zA-Z0-9]`
)

var rules = map[string]formatRule{
	"pve-node":            rule(dnsLabel, "value does not look like a valid node name\n"),
	"pve-vmid":            rule(`[1-9][0-9]{2,8}`, "value does not look like a valid VM ID\n"),
	"dns-name":            rule(dnsLabel+`(?:\.`+dnsLabel+`)*`, "value does not look like a valid DNS name\n"),
	"pve-configid":        rule(`[a-zA-Z][a-zA-Z0-9_-]+`, "invalid configuration ID '%s'\n"),
	"pve-bridge-id":       rule(`[-_.\w\d]{1,15}`, "invalid bridge ID '%s'\n"),
	"pve-iface":           rule(`[a-zA-Z][a-zA-Z0-9_]{1,20}(?:[:.]\d+)?`, "invalid network interface name '%s'\n"),
	"mac-addr":            rule(`[a-fA-F0-9][02468aceACE](?::[a-fA-F0-9]{2}){5}`, "value does not look like a valid unicast MAC address\n"),
	"mac-prefix":          rule(`[a-fA-F0-9][02468aceACE](?::[a-fA-F0-9]{2}){0,2}:?`, "value is not a valid unicast MAC address prefix\n"),
	"urlencoded":          rule(`[-%a-zA-Z0-9_.!~*'()]*`, "invalid urlencoded string: %s\n"),
	"disk-size":           rule(`\d+(?:\.\d+)?[KMGT]?`, "value does not look like a valid disk size: %s\n"),
	"pve-cpuset":          rule(`\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*`, "unable to parse cpuset option\n"),
	"pve-tag":             rule(`[a-zA-Z0-9_][a-zA-Z0-9_\-+.]*`, "invalid characters in tag\n"),
	"pve-userid":          rule(`[^\s:/]+@[A-Za-z][A-Za-z0-9.\-_]+`, "value '%s' does not look like a valid user name\n"),
	"pve-tokenid":         rule(`[^\s:/]+@[A-Za-z][A-Za-z0-9.\-_]+![A-Za-z][A-Za-z0-9.\-_]+`, "value '%s' does not look like a valid token ID\n"),
	"pve-realm":           rule(`[A-Za-z][A-Za-z0-9.\-_]+`, "value does not look like a valid realm\n"),
	"pve-groupid":         rule(`[A-Za-z0-9.\-_]+`, "group name '%s' contains invalid characters\n"),
	"pve-roleid":          rule(`[A-Za-z0-9.\-_]+`, "role name '%s' contains invalid characters\n"),
	"pve-poolid":          rule(`[A-Za-z0-9.\-_]+(?:/[A-Za-z0-9.\-_]+){0,2}`, "pool name '%s' contains invalid characters\n"),
	"email-opt":           rule(`|[\w+\-.~]+@[a-zA-Z0-9.\-]+`, "value does not look like a valid email address\n"),
	"pve-volume-id":       rule(storageRef+`:.+`, "unable to parse volume ID '%s'\n"),
	"pve-storage-content": rule(`images|rootdir|vztmpl|iso|backup|snippets|import|none`, "invalid content type '%s'\n"),
	"pve-hotplug-features": rule(`0|1|(?:network|disk|cpu|memory|usb|cloudinit)(?:[,; ]+(?:network|disk|cpu|memory|usb|cloudinit))*`,
		"unable to parse hotplug option\n"),
	"pve-ha-resource-or-vm-id": rule(`(?:vm|ct):[1-9][0-9]{2,8}|[1-9][0-9]{2,8}`, "value does not look like a valid HA resource\n"),
	"pve-ha-resource-id":       rule(`(?:vm|ct):[1-9][0-9]{2,8}`, "value does not look like a valid HA resource id\n"),
	"pve-fw-protocol-spec":     rule(`[a-zA-Z0-9.\-/+]+`, "unknown protocol '%s'\n"),
	"pve-fw-icmp-type-spec":    rule(`[a-z0-9\-/]+`, "invalid icmp type '%s'\n"),
	"pve-task-status-type":     rule(`ok|error|warning|unknown`, "invalid value '%s'\n"),
	"pve-storage-vgname":       rule(`[a-zA-Z0-9.\-_+]+`, "lvm volume group name '%s' contains illegal characters\n"),
	"pve-storage-path":         rule(`/.+`, "value does not look like a valid absolute path\n"),
	"pve-ipv4-config":          rule(`dhcp|(?:\d{1,3}\.){3}\d{1,3}/(?:3[0-2]|[12]?\d)`, "value does not look like a valid ipv4 network configuration\n"),
	"pve-ipv6-config":          rule(`auto|dhcp|[0-9a-fA-F:]+/(?:12[0-8]|1[01]\d|[1-9]?\d)`, "value does not look like a valid ipv6 network configuration\n"),
	"pve-startup-order":        rule(`(?:(?:order=)?\d+|up=\d+|down=\d+)(?:,(?:(?:order=)?\d+|up=\d+|down=\d+))*`, "unable to parse startup options\n"),
}

// SplitList splits a list parameter as Proxmox does.
func SplitList(v string) []string {
	return strings.FieldsFunc(v, func(r rune) bool { return strings.ContainsRune(",; \t\n\r\x00", r) })
}

// checkNamed checks a value against a format that the published schema does not describe.
func (k *checker) checkNamed(path, format, v string) string {
	// The elements of a list are separated by blanks, commas or semicolons.
	if element, ok := strings.CutSuffix(format, "-list"); ok {
		for _, e := range SplitList(v) {
			if text := k.checkNamed(path, element, e); text != "" {
				return text
			}
		}
		return ""
	}
	if fields := objectFormats[format]; fields != nil {
		_, text := k.parse(path, fields, v)
		return text
	}
	if r, ok := rules[format]; ok {
		return r.check(v)
	}
	if check, ok := special[format]; ok {
		return check(k, path, v)
	}
	return ""
}

func (r formatRule) check(v string) string {
	if r.pattern.MatchString(v) {
		return ""
	}
	if strings.Contains(r.text, "%s") {
		return fmt.Sprintf(r.text, v)
	}
	return r.text
}

// special are formats that need more than one pattern. init sets it because some of them call checkNamed.
var special map[string]func(k *checker, path, v string) string

func init() { //nolint:gochecknoinits // breaks the initialization cycle between special and checkNamed
	special = map[string]func(k *checker, path, v string) string{
		"pve-storage-id":                 func(_ *checker, _, v string) string { return checkStorageID(v) },
		"pve-priv":                       checkPrivilege,
		"pve-vm-cpu-conf":                checkCPU,
		"pve-qm-boot":                    checkBoot,
		"pve-volume-id-or-qm-path":       checkDriveFile,
		"pve-volume-id-or-absolute-path": checkImportSource,
		"pve-qm-ide":                     func(k *checker, path, v string) string { return checkDriveFile(k, path, v) },
		"ip":                             func(_ *checker, _, v string) string { return checkIP(v, 0) },
		"ipv4":                           func(_ *checker, _, v string) string { return checkIP(v, 4) },
		"ipv6":                           func(_ *checker, _, v string) string { return checkIP(v, 6) },
		"CIDR":                           func(_ *checker, _, v string) string { return checkCIDR(v) },
		"IPorCIDR":                       checkIPorCIDR,
		"pve-fw-dport-spec":              func(_ *checker, _, v string) string { return checkPorts(v) },
		"pve-fw-sport-spec":              func(_ *checker, _, v string) string { return checkPorts(v) },
		"pve-fw-addr-spec":               func(_ *checker, _, v string) string { return checkFirewallAddress(v) },
		"IPorCIDRorAlias":                func(_ *checker, _, v string) string { return checkFirewallAddress(v) },
		"pve-sdn-zone-id":                func(_ *checker, _, v string) string { return checkZoneID(v) },
	}
}

var (
	storageID   = regexp.MustCompile(`^` + storageRef + `$`)
	driveDevice = regexp.MustCompile(`^(?:(?:ide|sata|scsi|virtio|net|usb|hostpci)\d+)$`)
	aliasName   = regexp.MustCompile(`^(?:[+](?:dc/|guest/|sdn/)?[A-Za-z][A-Za-z0-9\-_]*|(?:dc/|guest/)?[A-Za-z][A-Za-z0-9\-_]*)$`)
	portRange   = regexp.MustCompile(`^(?:\d{1,5}(?::\d{1,5})?|[a-zA-Z][a-zA-Z0-9\-]*)$`)
)

func checkStorageID(v string) string {
	switch {
	case len(v) < 2:
		return fmt.Sprintf("storage ID '%s' cannot be shorter than 2 characters\n", v)
	case !storageID.MatchString(v):
		return fmt.Sprintf("storage ID '%s' contains illegal characters\n", v)
	}
	return ""
}

func checkZoneID(v string) string {
	switch {
	case !regexp.MustCompile(`^[a-z][a-z0-9]*[a-z0-9]$`).MatchString(v):
		return fmt.Sprintf("zone ID '%s' contains illegal characters\n", v)
	case len(v) > 8:
		return fmt.Sprintf("zone ID '%s' can't be more length than 8 characters\n", v)
	}
	return ""
}

func checkPrivilege(k *checker, _, v string) string {
	if slices.Contains(Privileges(k.catalog.Version), v) {
		return ""
	}
	return fmt.Sprintf("invalid privilege '%s'\n", v)
}

func checkCPU(k *checker, path, v string) string {
	values, text := k.parse(path, cpuFields, v)
	if text != "" {
		return text
	}
	model := values["cputype"]
	if model == "" || CPUVendors[model] != "" {
		return ""
	}
	if custom, ok := strings.CutPrefix(model, "custom-"); ok {
		return fmt.Sprintf("Custom cputype '%s' not found\n", custom)
	}
	return fmt.Sprintf("Built-in cputype '%s' is not defined (missing 'custom-' prefix?)\n", model)
}

func checkBoot(k *checker, path, v string) string {
	values, text := k.parse(path, bootFields, v)
	if text != "" {
		return text
	}
	for _, device := range strings.Split(values["order"], ";") {
		if device != "" && !driveDevice.MatchString(device) {
			return fmt.Sprintf("invalid boot device '%s'\n", device)
		}
	}
	return ""
}

func checkDriveFile(k *checker, path, v string) string {
	if v == "none" || v == "cdrom" || strings.HasPrefix(v, "/") {
		return ""
	}
	return k.checkNamed(path, "pve-volume-id", v)
}

func checkImportSource(k *checker, path, v string) string {
	if strings.HasPrefix(v, "/") {
		return ""
	}
	return k.checkNamed(path, "pve-volume-id", v)
}

func checkIP(v string, family int) string {
	a, err := netip.ParseAddr(v)
	switch {
	case family == 4 && (err != nil || !a.Is4()):
		return "value does not look like a valid IPv4 address\n"
	case family == 6 && (err != nil || !a.Is6()):
		return "value does not look like a valid IPv6 address\n"
	case err != nil:
		return "value does not look like a valid IP address\n"
	}
	return ""
}

func checkCIDR(v string) string {
	if _, err := netip.ParsePrefix(v); err != nil {
		return "value does not look like a valid CIDR network\n"
	}
	return ""
}

func checkIPorCIDR(_ *checker, _, v string) string {
	if checkIP(v, 0) == "" || checkCIDR(v) == "" {
		return ""
	}
	return fmt.Sprintf("value does not look like a valid IP address or CIDR network: '%s'\n", v)
}

func checkPorts(v string) string {
	for _, p := range strings.Split(v, ",") {
		if !portRange.MatchString(p) {
			return fmt.Sprintf("invalid port '%s'\n", p)
		}
	}
	return ""
}

func checkFirewallAddress(v string) string {
	for _, a := range strings.Split(v, ",") {
		from, to, isRange := strings.Cut(a, "-")
		switch {
		case aliasName.MatchString(a):
		case isRange && checkIP(from, 0) == "" && checkIP(to, 0) == "":
		case checkIP(a, 0) == "" || checkCIDR(a) == "":
		default:
			return fmt.Sprintf("invalid IP address: %s\n", a)
		}
	}
	return ""
}

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
		"model":  {Type: "string", Optional: true, DefaultKey: true, Enum: []string{"i6300esb", "ib700"}},
		"action": {Type: "string", Optional: true, Enum: []string{"reset", "shutdown", "poweroff", "pause", "debug", "none"}},
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
