// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package cloudinit generates the content of the cloud-init drives that Proxmox makes from the options of a VM.
package cloudinit

import (
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/kernel"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/qm"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/storage"
)

// Options are the cloud-init options of a VM, without numbers.
const Options = "cicustom cipassword citype ciuser ciupgrade nameserver searchdomain sshkeys ipconfig"

// fileNames are the files on the drive by their names in cicustom and dumps.
var fileNames = map[string]string{"user": "user-data", "network": "network-config", "meta": "meta-data", "vendor": "vendor-data"}

// Files returns the files of the drive that Proxmox generates for a VM. Snippets replace generated files; the instance
// ID is derived from the resulting content. The caller holds the mutex.
func Files(st *storage.Store, g *kernel.Guest) map[string]string {
	files := map[string]string{"user-data": UserData(g), "network-config": NetworkConfig(g), "vendor-data": ""}
	for kind, volid := range qm.ParseFields(g.Config.Options["cicustom"]) {
		if v := st.Volume(g.Host, volid); v != nil && v.Blob != nil {
			files[fileNames[kind]] = string(st.FileContent(v))
		}
	}
	if _, custom := files["meta-data"]; !custom {
		files["meta-data"] = MetaData(files["user-data"], files["network-config"])
	}
	return files
}

// UserData returns the user data that Proxmox generates.
func UserData(g *kernel.Guest) string {
	o := g.Config.Options
	name := cmp.Or(o["name"], "VM"+strconv.Itoa(g.VMID))
	fqdn := name
	if domain, _, _ := strings.Cut(o["searchdomain"], " "); domain != "" && !strings.Contains(name, ".") {
		fqdn = name + "." + domain
	}
	hostname, _, _ := strings.Cut(name, ".")
	var b strings.Builder
	fmt.Fprintf(&b, "#cloud-config\nhostname: %s\nmanage_etc_hosts: true\nfqdn: %s\n", hostname, fqdn)
	if u := o["ciuser"]; u == "root" {
		b.WriteString("disable_root: False\nuser: root\n")
	} else if u != "" {
		fmt.Fprintf(&b, "user: %s\n", u)
	}
	if p := o["cipassword"]; p != "" {
		fmt.Fprintf(&b, "password: %s\n", p)
	}
	if keys, err := url.PathUnescape(o["sshkeys"]); err == nil && strings.TrimSpace(keys) != "" {
		b.WriteString("ssh_authorized_keys:\n")
		for _, k := range strings.Split(strings.TrimSpace(keys), "\n") {
			fmt.Fprintf(&b, "  - %s\n", strings.TrimSpace(k))
		}
	}
	b.WriteString("chpasswd:\n  expire: False\n")
	if o["ciuser"] != "root" {
		b.WriteString("users:\n  - default\n")
	}
	if g.Config.Bool("ciupgrade", true) {
		b.WriteString("package_upgrade: true\n")
	}
	return b.String()
}

// NetworkConfig returns the network configuration that Proxmox generates.
func NetworkConfig(g *kernel.Guest) string {
	o := g.Config.Options
	var b strings.Builder
	b.WriteString("version: 1\nconfig:\n")
	for _, key := range qm.NetKeys(o) {
		n := strings.TrimPrefix(key, "net")
		ip := qm.ParseFields(o["ipconfig"+n])
		if len(ip) == 0 {
			continue
		}
		fmt.Fprintf(&b, "    - type: physical\n      name: eth%s\n      mac_address: '%s'\n      subnets:\n", n, strings.ToLower(qm.ParseNet(o[key]).MAC))
		writeSubnet(&b, ip["ip"], ip["gw"], "dhcp4", "static")
		writeSubnet(&b, ip["ip6"], ip["gw6"], "dhcp6", "static6")
	}
	b.WriteString("    - type: nameserver\n      address:\n")
	servers := strings.Fields(o["nameserver"])
	if len(servers) == 0 {
		servers = []string{"10.255.255.53"}
	}
	for _, s := range servers {
		fmt.Fprintf(&b, "      - '%s'\n", s)
	}
	b.WriteString("      search:\n")
	for _, d := range strings.Fields(cmp.Or(o["searchdomain"], "localdomain")) {
		fmt.Fprintf(&b, "      - '%s'\n", d)
	}
	return b.String()
}

func writeSubnet(b *strings.Builder, address, gateway, dhcp, static string) {
	switch {
	case address == "":
	case address == "dhcp":
		fmt.Fprintf(b, "      - type: %s\n", dhcp)
	case address == "auto":
		b.WriteString("      - type: ipv6_slaac\n")
	default:
		fmt.Fprintf(b, "      - type: %s\n", static)
		prefix, err := netip.ParsePrefix(address)
		if err == nil && prefix.Addr().Is4() {
			fmt.Fprintf(b, "        address: '%s'\n        netmask: '%s'\n", prefix.Addr(), net.IP(net.CIDRMask(prefix.Bits(), 32)))
		} else {
			fmt.Fprintf(b, "        address: '%s'\n", address)
		}
		if gateway != "" {
			fmt.Fprintf(b, "        gateway: '%s'\n", gateway)
		}
	}
}

// MetaData returns the metadata for the given user data and network configuration.
func MetaData(user, network string) string {
	return "instance-id: " + api.SHA1(user+network) + "\n"
}

// CheckSnippets returns an error if a snippet in the cicustom option does not exist. The caller holds the mutex.
func CheckSnippets(st *storage.Store, g *kernel.Guest) error {
	snippets := qm.ParseFields(g.Config.Options["cicustom"])
	for _, kind := range slices.Sorted(maps.Keys(snippets)) {
		if err := st.CheckVolume(g.Host, snippets[kind]); err != nil {
			return err
		}
	}
	return nil
}

var sshKey = regexp.MustCompile(`^(?:[a-z\-]+="?[^"\s]*"?\s+)?(?:ssh-(?:rsa|dss|ed25519)|ecdsa-sha2-nistp(?:256|384|521)|sk-[a-z0-9@.\-]+)\s+AAAA[0-9A-Za-z+/]+={0,3}(?:\s.*)?$`)

// CheckSSHKeys returns an error if a value of the sshkeys option contains an invalid key. The value is URL-encoded
// twice.
func CheckSSHKeys(v string) error {
	text, err := url.PathUnescape(v)
	if err != nil {
		return api.Failf("SSH public key validation error")
	}
	for _, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if !sshKey.MatchString(line) || !isCompleteKey(line) {
			return api.Failf("SSH public key validation error")
		}
	}
	return nil
}

// isCompleteKey reports whether the binary form of a key is complete and matches the type in its text.
func isCompleteKey(line string) bool {
	fields := strings.Fields(line)
	for i, f := range fields {
		if !strings.HasPrefix(f, "AAAA") || i == 0 {
			continue
		}
		raw, err := base64.StdEncoding.DecodeString(f)
		if err != nil {
			return false
		}
		parts, ok := parseSSHStrings(raw)
		return ok && len(parts) > 1 && string(parts[0]) == fields[i-1] && (fields[i-1] != "ssh-ed25519" || len(parts[1]) == 32)
	}
	return false
}

func parseSSHStrings(raw []byte) (parts [][]byte, ok bool) {
	for len(raw) > 0 {
		if len(raw) < 4 {
			return nil, false
		}
		n := int(binary.BigEndian.Uint32(raw))
		if n < 0 || n > len(raw)-4 {
			return nil, false
		}
		parts = append(parts, raw[4:4+n])
		raw = raw[4+n:]
	}
	return parts, true
}

// HashPassword returns a password in the form of crypt(3) with SHA-256. No simulated guest can log in with it.
func HashPassword(password string) string {
	if strings.HasPrefix(password, "$5$") {
		return password
	}
	var salt [6]byte
	_, _ = rand.Read(salt[:]) // never fails
	s := base64.RawStdEncoding.EncodeToString(salt[:])
	sum := sha256.Sum256([]byte(s + password))
	return "$5$" + s + "$" + base64.RawStdEncoding.EncodeToString(sum[:])
}
