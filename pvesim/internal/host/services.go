// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"fmt"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/kernel"
)

// certificateLife is how long the certificates that Proxmox issues are valid.
const certificateLife = 2 * 365 * 24 * time.Hour

// systemRoutes returns the handlers of what the operating system of a host reports.
func (hh *handlers) systemRoutes() map[string]api.Handler {
	const host = "/nodes/{node}"
	return map[string]api.Handler{
		"GET " + host + "/hosts":                     kernel.Read(hh.k, hh.getHostsFile),
		"GET " + host + "/config":                    kernel.Read(hh.k, hh.getConfig),
		"PUT " + host + "/config":                    kernel.Change(hh.k, hh.putConfig),
		"GET " + host + "/certificates":              api.Index("name", "info"),
		"GET " + host + "/certificates/info":         kernel.Read(hh.k, hh.getCertificates),
		"GET " + host + "/services":                  kernel.Read(hh.k, hh.getServices),
		"GET " + host + "/services/{service}":        api.Index("subdir", "state"),
		"GET " + host + "/services/{service}/state":  kernel.Read(hh.k, hh.getService),
		"GET " + host + "/hardware":                  api.Index("type", "pci", "usb"),
		"GET " + host + "/hardware/usb":              api.Static([]api.Row{}),
		"GET " + host + "/aplinfo":                   api.Static([]api.Row{}),
		"GET " + host + "/rrddata":                   hh.getRRD,
		"GET " + host + "/qemu/{vmid}/rrddata":       hh.getRRD,
		"GET " + host + "/storage/{storage}/rrddata": hh.getRRD,
		"GET /cluster/metrics":                       api.Index("name", "server"),
		"GET /cluster/metrics/server":                api.Static([]api.Row{}),
	}
}

// getHostsFile returns /etc/hosts.
func (hh *handlers) getHostsFile(r *api.Request) (any, error) {
	h := hh.k.Host(r.Host)
	text := fmt.Sprintf("127.0.0.1 localhost.localdomain localhost\n%s %s.local %s\n", h.IP, h.Name, h.Name)
	return api.Row{"data": text, "digest": api.SHA1(text)}, nil
}

// getCertificates returns the certificate of the cluster's CA and that of the host. They are made up, same as the
// fingerprints in the list of hosts.
func (hh *handlers) getCertificates(r *api.Request) (any, error) {
	h := hh.k.Host(r.Host)
	const issuer = "/CN=Proxmox Virtual Environment/OU=simulator/O=PVE Cluster Manager CA"
	certificate := func(file, owner, subject string, names ...string) api.Row {
		return api.Row{
			"filename": file, "subject": subject, "issuer": issuer, "fingerprint": fingerprint(owner),
			"notbefore": h.BootedAt.Unix(), "notafter": h.BootedAt.Add(certificateLife).Unix(),
			"public-key-type": "rsaEncryption", "public-key-bits": 2048, "san": names,
		}
	}
	return []api.Row{
		certificate("pve-root-ca.pem", "CA", issuer),
		certificate("pve-ssl.pem", h.Name, "/OU=PVE Cluster Node/O=Proxmox Virtual Environment/CN="+h.Name+".local",
			"127.0.0.1", "localhost", h.IP, h.Name, h.Name+".local"),
	}, nil
}

// services are the services of Proxmox and their descriptions. Corosync runs only in clusters.
var services = []struct{ name, description string }{
	{"corosync", "Corosync Cluster Engine"},
	{"pve-cluster", "The Proxmox VE cluster filesystem"},
	{"pve-firewall", "Proxmox VE firewall"},
	{"pve-ha-crm", "PVE Cluster HA Resource Manager Daemon"},
	{"pve-ha-lrm", "PVE Local HA Resource Manager Daemon"},
	{"pvedaemon", "PVE API Daemon"},
	{"pveproxy", "PVE API Proxy Server"},
	{"pvescheduler", "Proxmox VE scheduler"},
	{"pvestatd", "PVE Status Daemon"},
	{"qmeventd", "PVE Qemu Event Daemon"},
	{"spiceproxy", "PVE SPICE Proxy Server"},
}

func (hh *handlers) getServices(*api.Request) (any, error) {
	rows := []api.Row{}
	for _, s := range services {
		rows = append(rows, hh.serviceRow(s.name, s.description))
	}
	return rows, nil
}

func (hh *handlers) getService(r *api.Request) (any, error) {
	for _, s := range services {
		if s.name == r.Params.Values["service"] {
			return hh.serviceRow(s.name, s.description), nil
		}
	}
	return nil, api.BadParam("service", "value '%s' does not have a value in the enumeration", r.Params.Values["service"])
}

func (hh *handlers) serviceRow(name, description string) api.Row {
	out := api.Row{
		"service": name, "name": name, "desc": description, "state": "running", "active-state": "active", "unit-state": "enabled",
	}
	if (name == "corosync" && hh.k.Name == "") || (name == "pve-ha-crm" && hh.k.HA.Stopped) {
		out["state"], out["active-state"] = "dead", "inactive"
	}
	return out
}
