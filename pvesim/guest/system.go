// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"bytes"
	"strings"
)

// service is a systemd unit that makes a guest a Node.
type service string

const (
	kubeletService service = "kubelet"
	k3sService     service = "k3s-agent"
	rke2Service    service = "rke2-agent"
	// talosService is no unit: Talos has no systemd, and always runs a kubelet.
	talosService service = "talos"
)

// serviceOf recognizes a unit by its name.
func serviceOf(unit string) (service, bool) {
	switch s := service(strings.TrimSuffix(unit, ".service")); s {
	case kubeletService, k3sService, rke2Service:
		return s, true
	}
	return "", false
}

// link is what systemctl enable makes.
func (s service) link() string {
	return "/etc/systemd/system/multi-user.target.wants/" + string(s) + ".service"
}

// started is the service, if the commands started it.
func (e unitEffect) started() service {
	if !e.start {
		return ""
	}
	return e.service
}

func (g *guest) enable(s service) { g.storage.Write(s.link(), nil) }

// system is the guest after its configuration.
type system struct {
	hostname  string
	addresses []address
	// service is what makes this boot a Node; empty if nothing does.
	service service
	image   string
}

const ubuntu = "Ubuntu 24.04 LTS (simulated)"

// configure lets the guest become what it is to be. Real images have one of these
// ways each; this one has all, and goes by what it finds on its disk, from earlier
// boots, and then on the drive.
func (g *guest) configure() (system, bool) {
	if config, ok := g.storage.Read(talosConfigFile); ok {
		return g.talos(config)
	}
	if _, ok := g.storage.Read(ignitionResultFile); ok {
		g.console.printf("ignition: not the first boot, nothing to do")
		return g.ignited(), true
	}
	for _, name := range []string{"opt/org.flatcar-linux/config", "opt/com.coreos/config"} {
		if config, ok := g.firmware[name]; ok {
			g.console.printf("ignition: reading %s of the firmware", name)
			return g.ignite(config)
		}
	}
	if s, found := findSeed(g.drives(), g.console); found {
		switch {
		case isTalos(s.userData):
			return g.installTalos(s.userData)
		case bytes.HasPrefix(bytes.TrimSpace(s.userData), []byte("{")):
			return g.ignite(s.userData)
		case bytes.HasPrefix(bytes.TrimSpace(s.vendorData), []byte("{")):
			return g.ignite(s.vendorData) // user-data is empty, or for cloud-init
		}
	}
	return g.cloudInit()
}

// system reads back what earlier steps, or earlier boots, left on the disk of a
// machine with cloud-init.
func (g *guest) system(started service) system {
	name, _ := g.storage.Read(hostnameFile)
	netplan, _ := g.storage.Read(netplanFile)
	out := system{hostname: string(name), service: g.enabled(started), image: ubuntu}
	var err error
	if out.addresses, err = g.configureNetwork(netplan); err != nil {
		g.console.printf("network: %v", err)
	}
	return g.up(out)
}

// enabled is the service that systemd starts at this boot.
func (g *guest) enabled(started service) service {
	for _, s := range []service{kubeletService, k3sService, rke2Service} {
		if _, ok := g.storage.Read(s.link()); ok && started == "" {
			started = s
		}
	}
	return started
}

// up reports a system that is configured.
func (g *guest) up(s system) system {
	g.console.printf("hostname %s, addresses %v, service %q", s.hostname, s.addresses, s.service)
	g.setAgent(g.agent(s))
	return s
}

// nodeSettings reads the settings of the service's kubelet.
func (g *guest) nodeSettings(s system) (kubeletSettings, error) {
	switch s.service {
	case k3sService:
		return g.rancherSettings("k3s", s.hostname)
	case rke2Service:
		return g.rancherSettings("rke2", s.hostname)
	case talosService:
		return g.talosSettings(s.hostname)
	default:
		return readKubeletSettings(g.storage, s.hostname, g.console.printf)
	}
}
