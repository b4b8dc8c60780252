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
	"pve-node":      rule(dnsLabel, "value does not look like a valid node name\n"),
	"pve-vmid":      rule(`[1-9][0-9]{2,8}`, "value does not look like a valid VM ID\n"),
	"dns-name":      rule(dnsLabel+`(?:\.`+dnsLabel+`)*`, "value does not look like a valid DNS name\n"),
	"pve-configid":  rule(`[a-zA-Z][a-zA-Z0-9_-]+`, "invalid configuration ID '%s'\n"),
	"pve-bridge-id": rule(`[-_.\w\d]{1,15}`, "invalid bridge ID '%s'\n"),
	"pve-iface":     rule(`[a-zA-Z][a-zA-Z0-9_]{1,20}(?:[:.]\d+)?`, "invalid network interface name '%s'\n"),
	"mac-addr":      rule(`[a-fA-F0-9][02468aceACE](?::[a-fA-F0-9]{2}){5}`, "value does not look like a valid unicast MAC address\n"),
	"mac-prefix":    rule(`[a-fA-F0-9][02468aceACE](?::[a-fA-F0-9]{2}){0,2}:?`, "value is not a valid unicast MAC address prefix\n"),
	"urlencoded":    rule(`[-%a-zA-Z0-9_.!~*'()]*`, "invalid urlencoded string: %s\n"),
	"disk-size":     rule(`\d+(?:\.\d+)?[KMGT]?`, "value does not look like a valid disk size: %s\n"),
	"pve-cpuset":    rule(`\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*`, "unable to parse cpuset option\n"),
	"pve-tag":       rule(`[a-zA-Z0-9_][a-zA-Z0-9_\-+.]*`, "invalid characters in tag\n"),
	"pve-userid":    rule(`[^\s:/]+@[A-Za-z][A-Za-z0-9.\-_]+`, "value '%s' does not look like a valid user name\n"),
	"pve-tokenid":   rule(`[^\s:/]+@[A-Za-z][A-Za-z0-9.\-_]+![A-Za-z][A-Za-z0-9.\-_]+`, "value '%s' does not look like a valid token ID\n"),
	"pve-realm":     rule(`[A-Za-z][A-Za-z0-9.\-_]+`, "value does not look like a valid realm\n"),
	"pve-groupid":   rule(`[A-Za-z0-9.\-_]+`, "group name '%s' contains invalid characters\n"),
	"pve-roleid":    rule(`[A-Za-z0-9.\-_]+`, "role name '%s' contains invalid characters\n"),
	"pve-poolid":    rule(`[A-Za-z0-9.\-_]+(?:/[A-Za-z0-9.\-_]+){0,2}`, "pool name '%s' contains invalid characters\n"),
	"email-opt":     rule(`|[\w+\-.~]+@[a-zA-Z0-9.\-]+`, "value does not look like a valid email address\n"),
	"pve-volume-id": rule(storageRef+`:.+`, "unable to parse volume ID '%s'\n"),
	"pve-storage-content": rule(`images|rootdir|vztmpl|iso|backup|snippets|import|none`,
		"invalid content type '%s'\n"),
	"pve-hotplug-features": rule(`0|1|(?:network|disk|cpu|memory|usb|cloudinit)(?:[,; ]+(?:network|disk|cpu|memory|usb|cloudinit))*`,
		"unable to parse hotplug option\n"),
	"pve-ha-resource-or-vm-id": rule(`(?:vm|ct):[1-9][0-9]{2,8}|[1-9][0-9]{2,8}`, "value does not look like a valid HA resource\n"),
	"pve-fw-protocol-spec":     rule(`[a-zA-Z0-9.\-/+]+`, "unknown protocol '%s'\n"),
	"pve-fw-icmp-type-spec":    rule(`[a-z0-9\-/]+`, "invalid icmp type '%s'\n"),
	"pve-task-status-type":     rule(`ok|error|warning|unknown`, "invalid value '%s'\n"),
	"pve-storage-vgname":       rule(`[a-zA-Z0-9.\-_+]+`, "lvm volume group name '%s' contains illegal characters\n"),
	"pve-storage-path":         rule(`/.+`, "value does not look like a valid absolute path\n"),
	"pve-ipv4-config":          rule(`dhcp|(?:\d{1,3}\.){3}\d{1,3}/(?:3[0-2]|[12]?\d)`, "value does not look like a valid ipv4 network configuration\n"),
	"pve-ipv6-config":          rule(`auto|dhcp|[0-9a-fA-F:]+/(?:12[0-8]|1[01]\d|[1-9]?\d)`, "value does not look like a valid ipv6 network configuration\n"),
	"pve-startup-order":        rule(`(?:(?:order=)?\d+|up=\d+|down=\d+)(?:,(?:(?:order=)?\d+|up=\d+|down=\d+))*`, "unable to parse startup options\n"),
}

// listOf returns the format of the elements of a list format. Elements are separated by blanks, commas or semicolons.
func listOf(format string) (string, bool) {
	element, ok := strings.CutSuffix(format, "-list")
	return element, ok
}

// SplitList splits a list parameter as Proxmox does.
func SplitList(v string) []string {
	return strings.FieldsFunc(v, func(r rune) bool { return strings.ContainsRune(",; \t\n\r\x00", r) })
}

// checkNamed checks a value against a format that the published schema does not describe.
func (k *checker) checkNamed(path, format, v string) string {
	if element, ok := listOf(format); ok {
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
		"pve-vm-cpu-conf":                func(_ *checker, _, v string) string { return checkCPU(v) },
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

func checkCPU(v string) string {
	values, text := parsePropertyString(cpuFields, v)
	if text != "" {
		return text
	}
	model := values["cputype"]
	if model == "" || strings.HasPrefix(model, "custom-") || CPUVendors[model] != "" {
		return ""
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
