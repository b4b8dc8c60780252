// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox_test

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// views are what the client reads from options. Proxmox normalizes a value when it stores
// it, which must not change what it means to the client.
var views = map[string]func(proxmox.VMConfig) any{
	"net0": func(c proxmox.VMConfig) any {
		var read []any
		for _, n := range c.Network().NICs() {
			mac := strings.ToUpper(n.MAC)
			if mac == "" {
				mac = "generated"
			}
			read = append(read, n.Model, mac, n.Bridge, n.VLAN, n.Firewall, n.MTU, n.Queues)
		}
		return read
	},
	"ipconfig0": func(c proxmox.VMConfig) any { return []any{c.Network().IPConfig("net0"), c.Network().Addresses()} },
	"smbios1":   func(c proxmox.VMConfig) any { return c.SMBIOS().Encode() },
	"numa0": func(c proxmox.VMConfig) any {
		cell := proxmox.ParseNUMACell(c.Options["numa0"])
		return []any{cell.CPUs.String(), cell.HostCells.String(), cell.MemoryMiB, cell.Policy}
	},
	"affinity":    func(c proxmox.VMConfig) any { return c.Compute().Affinity().String() },
	"memory":      func(c proxmox.VMConfig) any { return c.Compute().MemoryMiB() },
	"cores":       func(c proxmox.VMConfig) any { return c.Compute().Cores() },
	"agent":       func(c proxmox.VMConfig) any { return c.Network().AgentEnabled() },
	"boot":        func(c proxmox.VMConfig) any { return c.Drives().BootOrder() },
	"protection":  func(c proxmox.VMConfig) any { return c.Protected() },
	"description": func(c proxmox.VMConfig) any { return strings.TrimRight(c.Description(), " \n") },
	"cicustom":    func(c proxmox.VMConfig) any { return proxmox.ParseSnippets(c.Options["cicustom"]) },
	"tags": func(c proxmox.VMConfig) any {
		tags := c.Tags()
		for i := range tags {
			tags[i] = strings.ToLower(tags[i])
		}
		slices.Sort(tags)
		return slices.Compact(tags)
	},
	"scsi0": func(c proxmox.VMConfig) any {
		drive, ok := c.Drives().Find("scsi0")
		return []any{drive.Storage, drive.IsCDROM, drive.IsCloudInit, ok} // Proxmox chooses the name of a new volume
	},
}

// fuzzVMID is a stopped VM of the simulator.
const fuzzVMID = 300

func simulateStopped(f *testing.F) (*pvesim.Simulator, proxmox.Client) {
	f.Helper()
	sim := startSim(f, pvesim.Options{InMemory: true, Speed: 50}, "9.2", func(s *pvesim.Scenario) {
		s.Guests = append(s.Guests, pvesim.Guest{VMID: fuzzVMID, Name: "fuzz", Host: "pve1", Config: map[string]string{"memory": "512", "cores": "1"}})
	})
	return sim, newClient(f, simConfig(sim), proxmox.Options{DialContext: sim.DialContext})
}

// What the simulator's own parsers accept and store means the same to the client as what
// was written, and what the client writes back is accepted and stored unchanged.
func FuzzSimulatorConfig(f *testing.F) {
	for option, values := range map[string][]string{
		"net0":        {"virtio,bridge=vmbr0", "virtio=BC:24:11:00:00:01,bridge=vmbr0,firewall=1,tag=7,mtu=1400", "model=e1000,macaddr=bc:24:11:00:00:01,firewall=on", "rtl8139=BC:24:11:00:00:01,queues=2,trunks=1;2-4,"},
		"ipconfig0":   {"ip=dhcp,ip6=auto", "ip=10.0.0.2/24,gw=10.0.0.1", "ip6=2001:db8::2/64,gw6=fe80::1"},
		"smbios1":     {"uuid=6f3f8a4e-4fd4-4d2c-9a5e-1a1f6b7a3a11,serial=eA==,base64=1", "manufacturer=a,base64=0", "base64=yes,sku=YQ"},
		"numa0":       {"cpus=0-1;3,hostnodes=0,memory=512,policy=bind", "cpus=0-99999999999,memory=1"},
		"affinity":    {"0-3,8", "0-99999999999"},
		"memory":      {"512", "current=2048"},
		"cores":       {"4"},
		"agent":       {"1", "enabled=1,fstrim_cloned_disks=1", "type=virtio,enabled=true", "fstrim_cloned_disks=1,0"},
		"boot":        {"order=scsi0;net0", "legacy=cdn", "cdn"},
		"protection":  {"1"},
		"description": {"notes\n\n", "<!-- a -->"},
		"cicustom":    {"user=local:snippets/a.yaml,meta=local:snippets/b.yaml"},
		"tags":        {"B;a,c a"},
		"scsi0":       {"none,media=cdrom", "file=local-lvm:vm-300-disk-0,size=1G", "local-lvm:1,discard=on"},
	} {
		for _, value := range values {
			f.Add(option, value)
		}
	}
	_, c := simulateStopped(f)
	f.Fuzz(func(t *testing.T, option, value string) {
		view, known := views[option]
		if !known || !utf8.ValidString(value) {
			return // JSON has only valid UTF-8
		}
		if err := c.UpdateVM(t.Context(), "pve1", fuzzVMID, proxmox.ConfigChange{Set: map[string]string{option: value}}); err != nil {
			checkRefusal(t, option, err)
			return
		}
		stored, err := c.VMConfig(t.Context(), "pve1", fuzzVMID)
		if err != nil {
			t.Fatal(err)
		}
		written := proxmox.VMConfig{Options: map[string]string{option: value}}
		if before, after := view(written), view(stored); !sameView(option, before, after) {
			t.Errorf("%s: %q means %v to the client, stored as %q it means %v", option, value, before, stored.Options[option], after)
		}
		if option == "net0" {
			encoded := stored.Network().NICs()[0].Encode()
			if err := c.UpdateVM(t.Context(), "pve1", fuzzVMID, proxmox.ConfigChange{Set: map[string]string{option: encoded}}); err != nil {
				t.Errorf("%q is stored as %q, the client writes %q: %v", value, stored.Options[option], encoded, err)
			}
		}
		if err := c.UpdateVM(t.Context(), "pve1", fuzzVMID, proxmox.ConfigChange{Delete: []string{option}}); err != nil {
			t.Errorf("deleting %s: %v", option, err)
		}
	})
}

func sameView(option string, before, after any) bool {
	if option == "net0" && len(before.([]any)) > 1 && before.([]any)[1] == "generated" {
		before.([]any)[1] = after.([]any)[1]
	}
	return reflect.DeepEqual(before, after)
}

func checkRefusal(t *testing.T, option string, err error) {
	t.Helper()
	g := NewWithT(t)
	var invalid *proxmox.InvalidError
	g.Expect(strings.ContainsAny(err.Error(), "\r\n")).To(BeFalse(), "more than one line")
	if errors.As(err, &invalid) && len(invalid.Parameters) > 0 {
		for name := range invalid.Parameters {
			g.Expect(name).To(HavePrefix(option))
		}
	}
}

// The client and the simulator accept the same SSH keys.
func FuzzSSHKeys(f *testing.F) {
	f.Add(publicKey)
	f.Add("ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAAAAgCB comment")
	f.Add("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAAWE=") // of one byte
	f.Add("ssh AAAAA3NzaAAAAAFh")                     // of no known type
	f.Add("sk-ssh-ed25519@openssh.com AAAAGnNrLXNzaC1lZDI1NTE5QG9wZW5zc2guY29tAAAAAWE=")
	_, c := simulateStopped(f)
	f.Fuzz(func(t *testing.T, line string) {
		if fields := strings.Fields(line); len(fields) < 2 || !strings.HasPrefix(fields[1], "AAAA") || strings.HasPrefix(line, "#") || strings.ContainsAny(line, "\r\n") {
			return // no single key, or one with options
		}
		refused := c.UpdateVM(t.Context(), "pve1", fuzzVMID, proxmox.ConfigChange{Set: map[string]string{"sshkeys": proxmox.EncodeSSHKeys([]string{line})}})
		err := proxmox.CheckSSHKey(line)
		if strings.HasPrefix(line, "sk-") && err != nil {
			return // the simulator knows no types of security keys
		}
		if (err == nil) != (refused == nil) {
			t.Errorf("%q: the client finds %v, the simulator %v", line, err, refused)
		}
	})
}

// The client and the simulator accept the same UPIDs.
func FuzzUPID(f *testing.F) {
	f.Add("UPID:pve1:00003790:00053A7E:6AF9038E:download:tiny.qcow2:kubernetes@pve!karpenter:")
	f.Add("UPID:pve1:00003790:00053A7E:6AF9038E:vncproxy::root@pam:")
	f.Add("UPID:pve-1:0000379:00053A7E:6AF9038E:qmstart:100:root@pam:")
	f.Add("UPID:pve1:00003790:100053A7E:6AF9038E:imgdel:a\\x2fb:root@pam:\n")
	sim, _ := simulateStopped(f)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(sim.CAPEM())
	api := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, DialContext: sim.DialContext}}
	f.Fuzz(func(t *testing.T, text string) {
		task := proxmox.UPID(text)
		if task.Valid() {
			started := task.Started()
			if task.Host() == "" || task.Kind() == "" || task.User() == "" || started.IsZero() || started.Unix() > 1<<32 {
				t.Errorf("%q was read as host %q, type %q, user %q, started %s", text, task.Host(), task.Kind(), task.User(), started)
			}
		} else if task.Host()+task.Kind()+task.ID()+task.User() != "" || !task.Started().IsZero() {
			t.Errorf("%q is not valid, but has fields", text)
		}
		if strings.Contains(text, "/") || strings.Trim(text, ".") == "" {
			return // not a path of the API
		}
		if parsed := !strings.Contains(rawGet(t, api, sim.URL()+"/nodes/pve1/tasks/"+url.PathEscape(text)+"/status"), "unable to parse worker upid"); parsed != task.Valid() {
			t.Errorf("%q: the simulator parses it: %t, the client: %t", text, parsed, task.Valid())
		}
	})
}

// rawGet returns the body of a response, whatever its status.
func rawGet(t *testing.T, api *http.Client, address string) string {
	t.Helper()
	g := NewWithT(t)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, nil)
	g.Expect(err).NotTo(HaveOccurred())
	request.Header.Set("Authorization", "PVEAPIToken="+pvesim.DefaultTokenID+"="+pvesim.DefaultTokenSecret)
	resp, err := api.Do(request)
	g.Expect(err).NotTo(HaveOccurred())
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	g.Expect(err).NotTo(HaveOccurred())
	return string(body)
}
