// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha1" //nolint:gosec // Proxmox derives the instance id with SHA-1
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/locks"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/qm"
)

// wholeKey checks that the key's binary form is complete and of the type that its text claims.
func wholeKey(line string) bool {
	fields := strings.Fields(line)
	for i, f := range fields {
		if !strings.HasPrefix(f, "AAAA") || i == 0 {
			continue
		}
		raw, err := base64.StdEncoding.DecodeString(f)
		if err != nil {
			return false
		}
		parts, ok := sshStrings(raw)
		return ok && len(parts) > 1 && string(parts[0]) == fields[i-1] && (fields[i-1] != "ssh-ed25519" || len(parts[1]) == 32)
	}
	return false
}

func sshStrings(raw []byte) (parts [][]byte, ok bool) {
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

// hashPassword gives a password the look of crypt(3)'s SHA-256 form; no simulated guest logs in with it.
func hashPassword(password string) string {
	if strings.HasPrefix(password, "$5$") {
		return password
	}
	var salt [6]byte
	_, _ = rand.Read(salt[:]) // never fails
	s := base64.RawStdEncoding.EncodeToString(salt[:])
	sum := sha256.Sum256([]byte(s + password))
	return "$5$" + s + "$" + base64.RawStdEncoding.EncodeToString(sum[:])
}

// cloudInitFiles is the content of the drive that Proxmox generates for a VM. Snippets take the place of what it would
// make; the instance id follows from what is on the drive in the end.
func (e *Engine) cloudInitFiles(g *Guest) map[string]string {
	files := map[string]string{"user-data": cloudInitUser(g), "network-config": cloudInitNetwork(g), "vendor-data": ""}
	for kind, volid := range qm.ParseFields(g.Config.Options["cicustom"]) {
		if v := e.volume(g.Host, volid); v != nil && v.Blob != nil {
			files[cloudInitFile[kind]] = string(e.data(v))
		}
	}
	if _, custom := files["meta-data"]; !custom {
		files["meta-data"] = cloudInitMeta(files["user-data"], files["network-config"])
	}
	return files
}

// cloudInitFile is the file on the drive by its name in cicustom and dumps.
var cloudInitFile = map[string]string{"user": "user-data", "network": "network-config", "meta": "meta-data", "vendor": "vendor-data"}

func cloudInitUser(g *Guest) string {
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
	if g.Config.On("ciupgrade", true) {
		b.WriteString("package_upgrade: true\n")
	}
	return b.String()
}

func cloudInitNetwork(g *Guest) string {
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

func cloudInitMeta(user, network string) string {
	sum := sha1.Sum([]byte(user + network)) //nolint:gosec // see the import
	return "instance-id: " + hex.EncodeToString(sum[:]) + "\n"
}

func (e *Engine) getCloudInit(_ context.Context, r *Request) (Response, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	g := e.guestOn(r.host, r.vmid)
	if g == nil {
		return Response{}, missingConfig(r.host, r.vmid)
	}
	rows := []row{}
	for _, key := range strings.Fields("cicustom cipassword citype ciupgrade ciuser nameserver searchdomain sshkeys") {
		if v, ok := g.Config.Options[key]; ok {
			rows = append(rows, row{"key": key, "value": e.hide(key, v)})
		}
	}
	return Response{Data: rows}, nil
}

func (e *Engine) putCloudInit(ctx context.Context, r *Request) (Response, error) {
	release, err := e.lockGuest(ctx, nil, r.host, r.vmid, locks.Exclusive, 10*time.Second)
	if err != nil {
		return Response{}, failf("%v", err)
	}
	defer release()
	e.mu.Lock()
	defer e.mu.Unlock()
	g := e.guestOn(r.host, r.vmid)
	if g == nil {
		return Response{}, missingConfig(r.host, r.vmid)
	}
	if lock := g.Config.Lock(); lock != "" {
		return Response{}, failf("VM is locked (%s)", lock)
	}
	return Response{}, e.checkSnippets(g)
}

// getCloudInitDump shows what Proxmox would generate; it does not read custom snippets.
func (e *Engine) getCloudInitDump(_ context.Context, r *Request) (Response, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	g := e.guestOn(r.host, r.vmid)
	if g == nil {
		return Response{}, missingConfig(r.host, r.vmid)
	}
	user, network := cloudInitUser(g), cloudInitNetwork(g)
	files := map[string]string{"user": user, "network": network, "meta": cloudInitMeta(user, network)}
	return Response{Data: files[r.Params.Values["type"]]}, nil
}
