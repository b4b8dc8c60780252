// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/schema"
)

// fingerprint is a stable made-up certificate fingerprint of a host.
func fingerprint(host string) string {
	sum := sha256.Sum256([]byte(host))
	parts := make([]string, len(sum))
	for i, b := range sum {
		parts[i] = fmt.Sprintf("%02X", b)
	}
	return strings.Join(parts, ":")
}

func (e *Engine) getHostStatus(_ context.Context, r *Request) (Response, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	h := e.host(r.host)
	f := e.hostFigures(h)
	mem, _ := f["mem"].(int64)
	disk, _ := f["disk"].(int64)
	maxdisk, _ := f["maxdisk"].(int64)
	memory := row{"total": h.Memory, "used": mem, "free": h.Memory - mem}
	if e.Version.HostMemory {
		memory["available"] = h.Memory - mem
	}
	release := "6.8.12-13-pve"
	if e.Version.HostMemory {
		release = "7.0.2-1-pve"
	}
	build := "#1 SMP PREEMPT_DYNAMIC PMX"
	return Response{Data: row{
		"uptime": f["uptime"], "cpu": f["cpu"], "wait": 0, "idle": 0, "loadavg": []string{"0.10", "0.08", "0.05"},
		"kversion":       "Linux " + release + " " + build,
		"current-kernel": row{"sysname": "Linux", "machine": "x86_64", "release": release, "version": build},
		"boot-info":      row{"mode": "efi", "secureboot": 0},
		"pveversion":     "pve-manager/" + e.Version.Full + "/" + e.Version.RepoID,
		"cpuinfo": row{
			"cpus": h.CPUs(), "cores": h.Sockets * h.Cores, "sockets": h.Sockets, "model": "Simulated CPU", "mhz": "2600.000",
			"hvm": "1", "user_hz": 100, "flags": "fpu vme de pse tsc msr pae mce cx8 apic sep mtrr pge mca cmov pat aes avx avx2",
		},
		"memory": memory, "swap": row{"total": 0, "used": 0, "free": 0}, "ksm": row{"shared": 0},
		"rootfs": row{"total": maxdisk, "used": disk, "avail": maxdisk - disk, "free": maxdisk - disk},
	}}, nil
}

func (e *Engine) getHostTime(context.Context, *Request) (Response, error) {
	now := e.Clock.Now().Unix()
	return Response{Data: row{"time": now, "localtime": now, "timezone": "Etc/UTC"}}, nil
}

func (e *Engine) getDNS(context.Context, *Request) (Response, error) {
	return Response{Data: row{"dns1": "10.255.255.53"}}, nil
}

// getNetwork lists interfaces. Bridges are shown to those who may use or audit them.
func (e *Engine) getNetwork(_ context.Context, r *Request) (Response, error) {
	e.mu.Lock()
	bridges := slices.Clone(e.host(r.host).Bridges)
	e.mu.Unlock()
	typ := r.Params.Values["type"]
	host := e.Access.HasAny(r.Who, "/nodes/"+r.host, "Sys.Audit", "Sys.Modify")
	rows := []row{}
	if typ == "" || typ == "eth" {
		rows = append(rows, row{
			"iface": "eth0", "type": "eth", "active": 1, "method": "manual", "method6": "manual", "families": []string{"inet"}, "priority": 3,
		})
	}
	for i, b := range bridges {
		if typ != "" && !slices.Contains([]string{"bridge", "any_bridge", "any_local_bridge", "include_sdn"}, typ) {
			continue
		}
		if !host && !e.Access.HasAny(r.Who, "/sdn/zones/localnetwork/"+b.Name, "SDN.Audit", "SDN.Use") {
			continue
		}
		out := row{
			"iface": b.Name, "type": "bridge", "active": 1, "autostart": 1, "method": "manual", "method6": "manual",
			"families": []string{"inet"}, "bridge_ports": b.Ports, "bridge_stp": "off", "bridge_fd": "0", "priority": 4 + i,
		}
		if prefix, err := netip.ParsePrefix(b.CIDR); err == nil {
			out["method"], out["cidr"], out["address"], out["netmask"] = "static", b.CIDR, prefix.Addr().String(), fmt.Sprint(prefix.Bits())
		}
		if b.Gateway != "" {
			out["gateway"] = b.Gateway
		}
		if b.VLANAware {
			out["bridge_vlan_aware"] = 1
		}
		rows = append(rows, out)
	}
	if slices.Contains([]string{"vnet", "any_bridge", "include_sdn"}, typ) {
		rows = append(rows, e.localVNets(r)...)
	}
	return Response{Data: rows}, nil
}

// localVNets are the virtual networks that the caller may use or audit; every zone spans all hosts.
func (e *Engine) localVNets(r *Request) []row {
	e.mu.Lock()
	zones := map[string]string{}
	for _, id := range e.vnets.ids() {
		zones[id] = fmt.Sprint(e.vnets.field(id, "zone"))
	}
	e.mu.Unlock()
	rows := []row{}
	for _, id := range slices.Sorted(maps.Keys(zones)) {
		if e.Access.HasAny(r.Who, "/sdn/zones/"+zones[id]+"/"+id, "SDN.Audit", "SDN.Use") {
			rows = append(rows, row{"iface": id, "type": "vnet", "active": 1, "method": "manual", "method6": "manual"})
		}
	}
	return rows
}

func (e *Engine) getPCI(_ context.Context, r *Request) (Response, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	rows := e.host(r.host).PCI
	if rows == nil {
		rows = []row{}
	}
	return Response{Data: rows}, nil
}

func (e *Engine) getCPUModels(context.Context, *Request) (Response, error) {
	rows := []row{}
	for _, name := range slices.Sorted(maps.Keys(schema.CPUVendors)) {
		rows = append(rows, row{"name": name, "vendor": schema.CPUVendors[name], "custom": 0})
	}
	return Response{Data: rows}, nil
}

func (e *Engine) getMachines(context.Context, *Request) (Response, error) {
	rows := []row{}
	for _, typ := range []string{"i440fx", "q35"} {
		prefix := map[string]string{"i440fx": "pc-i440fx-", "q35": "pc-q35-"}[typ]
		for _, v := range []string{e.Version.QEMU[:strings.LastIndex(e.Version.QEMU, ".")], "9.0", "8.1"} {
			rows = append(rows, row{"id": prefix + v, "type": typ, "version": v})
		}
	}
	return Response{Data: rows}, nil
}

// getHostRRD answers the time axis of the graphs; the simulator keeps no history.
func (e *Engine) getHostRRD(context.Context, *Request) (Response, error) {
	rows := []row{}
	start := e.Clock.Now().Add(-70 * time.Minute).Truncate(time.Minute)
	for i := range 70 {
		rows = append(rows, row{"time": start.Add(time.Duration(i) * time.Minute).Unix()})
	}
	return Response{Data: rows}, nil
}

// getZoneContent cannot name the zone of the plain bridges: its id is longer than the format allows.
func (e *Engine) getZoneContent(_ context.Context, r *Request) (Response, error) {
	return Response{}, failf("zone '%s' does not exist", r.Params.Values["zone"])
}
