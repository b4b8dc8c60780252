// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"bytes"
	"strings"
)

// service is a systemd unit that runs a kubelet.
type service string

const (
	kubeletService service = "kubelet"
	k3sService     service = "k3s-agent"
	rke2Service    service = "rke2-agent"
	// talosService is not a unit: Talos has no systemd and always runs a kubelet.
	talosService service = "talos"
)

// serviceOf returns the service of a unit name.
func serviceOf(unit string) (service, bool) {
	switch s := service(strings.TrimSuffix(unit, ".service")); s {
	case kubeletService, k3sService, rke2Service:
		return s, true
	}
	return "", false
}

// link returns the symbolic link that systemctl enable creates.
func (s service) link() string {
	return "/etc/systemd/system/multi-user.target.wants/" + string(s) + ".service"
}

// started returns the service if the commands started it.
func (e unitEffect) started() service {
	if !e.start {
		return ""
	}
	return e.service
}

func (g *guest) enable(s service) { g.storage.Write(s.link(), nil) }

// system is the configured state of a guest.
type system struct {
	hostname  string
	addresses []address
	// service is the service that runs the kubelet in this boot; empty if none.
	service service
	image   string
	// powerOff is whether the boot data powers the guest off after it was applied.
	powerOff bool
}

const ubuntu = "Ubuntu 24.04 LTS (simulated)"

// configure configures the guest. A real image supports one configuration format; this
// guest supports all of them. It selects the format by the files that earlier boots
// wrote to the disk, then by the content of the drive.
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
			g.console.printf("ignition: reading %s from the firmware", name)
			return g.ignite(config)
		}
	}
	s, found := findSeed(g.drives(), g.console)
	return g.bootFrom(s, found)
}

// bootFrom configures the guest from the files on its drive, if it has one.
func (g *guest) bootFrom(s seed, found bool) (system, bool) {
	switch {
	case isTalos(s.userData):
		return g.installTalos(s.userData)
	case bytes.HasPrefix(bytes.TrimSpace(s.userData), []byte("{")):
		return g.ignite(s.userData)
	case bytes.HasPrefix(bytes.TrimSpace(s.vendorData), []byte("{")):
		return g.ignite(s.vendorData) // user-data is empty, or for cloud-init
	}
	return g.runCloudInit(s, found)
}

// system returns the state that cloud-init stored on the disk in this boot or an
// earlier one.
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

// enabled returns the service that systemd starts in this boot.
func (g *guest) enabled(started service) service {
	for _, s := range []service{kubeletService, k3sService, rke2Service} {
		if _, ok := g.storage.Read(s.link()); ok && started == "" {
			started = s
		}
	}
	return started
}

// up logs the configuration of the system.
func (g *guest) up(s system) system {
	g.console.printf("hostname %s, addresses %v, service %q", s.hostname, s.addresses, s.service)
	g.addresses = s.addresses
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
		g.runStartPre()
		return readKubeletSettings(g.storage, s.hostname, g.console.printf)
	}
}
