// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package host serves the API of the hosts: status, hardware, network and tasks.
package host

import (
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/kernel"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/pvestatd"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/schema"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/sdn"
)

// Handlers by kind of object.
type (
	handlers struct {
		k     *kernel.Kernel
		stats *pvestatd.Daemon
	}
	networkHandlers struct {
		k       *kernel.Kernel
		network *sdn.Network
	}
	taskHandlers struct{ k *kernel.Kernel }
)

// Routes returns the handlers of the hosts by method.
func Routes(k *kernel.Kernel, network *sdn.Network, stats *pvestatd.Daemon) map[string]api.Handler {
	hh, nh, th := handlers{k, stats}, networkHandlers{k, network}, taskHandlers{k}
	const host = "/nodes/{node}"
	routes := map[string]api.Handler{
		"GET /nodes": kernel.Read(k, hh.getHosts),
		"GET " + host: api.Index("name", "qemu", "lxc", "storage", "status", "tasks", "network", "firewall", "version",
			"aplinfo", "certificates", "config", "hardware", "hosts", "replication", "services"),
		"GET " + host + "/status":                     kernel.Read(k, hh.getHostStatus),
		"GET " + host + "/time":                       hh.getHostTime,
		"GET " + host + "/dns":                        api.Static(api.Row{"dns1": "10.255.255.53"}),
		"GET " + host + "/subscription":               api.Static(api.Row{"status": "notfound", "message": "There is no subscription key"}),
		"GET " + host + "/hardware/pci":               kernel.Read(k, hh.getPCI),
		"GET " + host + "/capabilities/qemu/cpu":      api.Static(cpuModels(k.Version.AbstractCPUs)),
		"GET " + host + "/capabilities/qemu/machines": api.Static(machines(k.Version.QEMU)),
		"GET " + host + "/network":                    nh.getNetwork,
		"GET " + host + "/network/{iface}":            nh.getInterface,
		"GET " + host + "/tasks":                      th.getTasks,
		"GET " + host + "/tasks/{upid}":               api.Index("name", "log", "status"),
		"DELETE " + host + "/tasks/{upid}":            th.deleteTask,
		"GET " + host + "/tasks/{upid}/log":           th.getTaskLog,
		"GET " + host + "/tasks/{upid}/status":        th.getTaskStatus,
		"GET /cluster/tasks":                          th.getClusterTasks,
		"GET /cluster/qemu/custom-cpu-models":         api.Static([]api.Row{}),
	}
	maps.Copy(routes, hh.systemRoutes())
	return routes
}

func (hh *handlers) getHosts(r *api.Request) (any, error) {
	may := hh.k.Access.Viewer(r.Who)
	serving, rows := hh.k.ServingHost(r), []api.Row{}
	for _, h := range hh.k.Hosts {
		out := hh.stats.HostRow(serving, h, may.Has("/nodes/"+h.Name, "Sys.Audit"))
		out["ssl_fingerprint"] = nil
		if h.Online {
			out["ssl_fingerprint"] = fingerprint(h.Name)
		}
		rows = append(rows, out)
	}
	return rows, nil
}

// fingerprint returns a made-up certificate fingerprint that is stable for a host.
func fingerprint(host string) string {
	sum := sha256.Sum256([]byte(host))
	parts := make([]string, len(sum))
	for i, b := range sum {
		parts[i] = fmt.Sprintf("%02X", b)
	}
	return strings.Join(parts, ":")
}

func (hh *handlers) getHostStatus(r *api.Request) (any, error) {
	h := hh.k.Host(r.Host)
	f := hh.stats.HostFigures(h)
	mem, _ := f["mem"].(int64)
	disk, _ := f["disk"].(int64)
	maxdisk, _ := f["maxdisk"].(int64)
	memory := api.Row{"total": h.Memory, "used": mem, "free": h.Memory - mem}
	if hh.k.Version.HostMemory {
		memory["available"] = h.Memory - mem
	}
	release := "6.8.12-13-pve"
	if hh.k.Version.HostMemory {
		release = "7.0.2-1-pve"
	}
	build := "#1 SMP PREEMPT_DYNAMIC PMX"
	return api.Row{
		"uptime": f["uptime"], "cpu": f["cpu"], "wait": 0, "idle": 0, "loadavg": []string{"0.10", "0.08", "0.05"},
		"kversion":       "Linux " + release + " " + build,
		"current-kernel": api.Row{"sysname": "Linux", "machine": "x86_64", "release": release, "version": build},
		"boot-info":      api.Row{"mode": "efi", "secureboot": 0},
		"pveversion":     "pve-manager/" + hh.k.Version.Full + "/" + hh.k.Version.RepoID,
		"cpuinfo": api.Row{
			"cpus": h.CPUs(), "cores": h.Sockets * h.Cores, "sockets": h.Sockets, "model": "Simulated CPU", "mhz": "2600.000",
			"family": "6", "vendor": "GenuineIntel",
			"hvm": "1", "user_hz": 100, "flags": "fpu vme de pse tsc msr pae mce cx8 apic sep mtrr pge mca cmov pat aes avx avx2",
		},
		"memory": memory, "swap": api.Row{"total": 0, "used": 0, "free": 0}, "ksm": api.Row{"shared": 0},
		"rootfs": api.Row{"total": maxdisk, "used": disk, "avail": maxdisk - disk, "free": maxdisk - disk},
	}, nil
}

func (hh *handlers) getHostTime(context.Context, *api.Request) (api.Response, error) {
	now := hh.k.Clock.Now().Unix()
	return api.Response{Data: api.Row{"time": now, "localtime": now, "timezone": "Etc/UTC"}}, nil
}

func (hh *handlers) getPCI(r *api.Request) (any, error) {
	rows := hh.k.Host(r.Host).PCI
	if rows == nil {
		rows = []api.Row{}
	}
	return rows, nil
}

func cpuModels(markAbstract bool) []api.Row {
	rows := []api.Row{}
	for _, name := range slices.Sorted(maps.Keys(schema.CPUVendors)) {
		row := api.Row{"name": name, "vendor": schema.CPUVendors[name], "custom": 0}
		if markAbstract && strings.HasPrefix(name, "x86-64-v") {
			row["abstract"] = 1
		}
		rows = append(rows, row)
	}
	return rows
}

// machines returns the machine types of a QEMU version.
func machines(qemu string) []api.Row {
	rows := []api.Row{}
	for _, typ := range []string{"i440fx", "q35"} {
		for _, v := range []string{qemu[:strings.LastIndex(qemu, ".")], "9.0", "8.1"} {
			rows = append(rows, api.Row{"id": "pc-" + typ + "-" + v, "type": typ, "version": v})
		}
	}
	return rows
}

// getRRD returns the time axis of the graphs of a host, VM or storage. The simulator has no history.
func (hh *handlers) getRRD(context.Context, *api.Request) (api.Response, error) {
	rows := []api.Row{}
	start := hh.k.Clock.Now().Add(-70 * time.Minute).Truncate(time.Minute)
	for i := range 70 {
		rows = append(rows, api.Row{"time": start.Add(time.Duration(i) * time.Minute).Unix()})
	}
	return api.Response{Data: rows}, nil
}

// getNetwork lists the interfaces of a host. Bridges are only listed if the caller can use or audit them.
func (nh *networkHandlers) getNetwork(_ context.Context, r *api.Request) (api.Response, error) {
	nh.k.Mu.Lock()
	bridges := slices.Clone(nh.k.Host(r.Host).Bridges)
	nh.k.Mu.Unlock()
	typ := r.Params.Values["type"]
	host := nh.k.Access.HasAny(r.Who, "/nodes/"+r.Host, "Sys.Audit", "Sys.Modify")
	rows := []api.Row{}
	if typ == "" || typ == "eth" {
		rows = append(rows, api.Row{
			"iface": "eth0", "type": "eth", "active": 1, "method": "manual", "method6": "manual", "families": []string{"inet"}, "priority": 3,
		})
	}
	for i, b := range bridges {
		if typ != "" && !slices.Contains([]string{"bridge", "any_bridge", "any_local_bridge", "include_sdn"}, typ) {
			continue
		}
		if !host && !nh.k.Access.HasAny(r.Who, "/sdn/zones/localnetwork/"+b.Name, "SDN.Audit", "SDN.Use") {
			continue
		}
		out := api.Row{
			"iface": b.Name, "type": "bridge", "active": 1, "autostart": 1, "method": "manual", "method6": "manual",
			"families": []string{"inet"}, "bridge_ports": b.Ports, "bridge_stp": "off", "bridge_fd": "0", "priority": 4 + i,
		}
		if prefix, err := netip.ParsePrefix(b.CIDR); err == nil {
			out["method"], out["cidr"], out["address"], out["netmask"] = "static", b.CIDR, prefix.Addr().String(), fmt.Sprint(prefix.Bits())
		}
		api.SetNonEmpty(out, "gateway", b.Gateway)
		if b.VLANAware {
			out["bridge_vlan_aware"] = 1
		}
		rows = append(rows, out)
	}
	if slices.Contains([]string{"vnet", "any_bridge", "include_sdn"}, typ) {
		rows = append(rows, nh.localVNets(r)...)
	}
	return api.Response{Data: rows}, nil
}

// localVNets returns the virtual networks that the caller can use or audit. Zones span all hosts.
func (nh *networkHandlers) localVNets(r *api.Request) []api.Row {
	nh.k.Mu.Lock()
	zones := nh.network.VNetZones()
	nh.k.Mu.Unlock()
	rows := []api.Row{}
	for _, id := range slices.Sorted(maps.Keys(zones)) {
		if nh.k.Access.HasAny(r.Who, "/sdn/zones/"+zones[id]+"/"+id, "SDN.Audit", "SDN.Use") {
			rows = append(rows, api.Row{"iface": id, "type": "vnet", "active": 1, "method": "manual", "method6": "manual"})
		}
	}
	return rows
}

func (nh *networkHandlers) getInterface(ctx context.Context, r *api.Request) (api.Response, error) {
	resp, err := nh.getNetwork(ctx, r)
	if err != nil {
		return resp, err
	}
	rows, _ := resp.Data.([]api.Row)
	for _, out := range rows {
		if out["iface"] == r.Params.Values["iface"] {
			return api.Response{Data: out}, nil
		}
	}
	return api.Response{}, api.BadParam("iface", "interface does not exist")
}
