// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	yaml "go.yaml.in/yaml/v3"
	sigsyaml "sigs.k8s.io/yaml"
)

// Paths that Talos uses. The machine config is stored in a dedicated partition.
const (
	talosConfigFile  = "/system/state/config.yaml"
	talosKubeletFile = "/etc/kubernetes/kubelet.yaml"
	talosImage       = "Talos (simulated)"
)

// talosConfig is the part of a machine config that matters to a worker.
type talosConfig struct {
	Machine struct {
		Type    string       `yaml:"type"`
		Token   string       `yaml:"token"`
		CA      talosKeyPair `yaml:"ca"`
		Kubelet talosKubelet `yaml:"kubelet"`
		Network struct {
			Hostname   string           `yaml:"hostname"`
			Interfaces []talosInterface `yaml:"interfaces"`
		} `yaml:"network"`
	} `yaml:"machine"`
	Cluster struct {
		ControlPlane struct {
			Endpoint string `yaml:"endpoint"`
		} `yaml:"controlPlane"`
		Token   string       `yaml:"token"`
		CA      talosKeyPair `yaml:"ca"`
		Network struct {
			ServiceSubnets []netip.Prefix `yaml:"serviceSubnets"`
		} `yaml:"network"`
	} `yaml:"cluster"`
}

type talosKeyPair struct {
	Crt string `yaml:"crt"`
}

type talosKubelet struct {
	ExtraArgs   map[string]string `yaml:"extraArgs"`
	ExtraConfig map[string]any    `yaml:"extraConfig"`
}

type talosInterface struct {
	Interface      string `yaml:"interface"`
	DeviceSelector struct {
		HardwareAddr string `yaml:"hardwareAddr"`
	} `yaml:"deviceSelector"`
	DHCP      bool     `yaml:"dhcp"`
	Addresses []string `yaml:"addresses"`
}

var talosStart = regexp.MustCompile(`(?m)^(machine:|version:\s*["']?v1alpha1\b|apiVersion:\s*["']?v1alpha1\b)`)

// isTalos reports whether the data is a machine config. Talos ignores #cloud-config.
func isTalos(userData []byte) bool {
	return !bytes.HasPrefix(userData, []byte("#")) && talosStart.Match(userData)
}

// installTalos installs the machine config from the drive. If the config is invalid,
// the machine stays in maintenance mode.
func (g *guest) installTalos(userData []byte) (system, bool) {
	if _, err := parseTalos(userData); err != nil {
		g.console.printf("talos: maintenance mode: %v", err)
		return system{}, false
	}
	g.storage.Write(talosConfigFile, userData)
	g.console.printf("talos: machine config stored")
	return g.talos(userData)
}

// talos boots from the stored config; it does not read the drive.
func (g *guest) talos(raw []byte) (system, bool) {
	config, err := parseTalos(raw)
	if err != nil {
		g.console.printf("talos: %v", err)
		return system{}, false
	}
	out := system{hostname: strings.ToLower(config.Machine.Network.Hostname), service: talosService, image: talosImage}
	if out.hostname == "" {
		out.hostname = "talos-" + strings.ToLower(g.uuid[:min(5, len(g.uuid))])
	}
	if out.addresses, err = g.talosNetwork(config.Machine.Network.Interfaces); err != nil {
		g.console.printf("network: %v", err)
	}
	return g.up(out), true
}

// parseTalos returns the first v1alpha1 document of the config.
func parseTalos(raw []byte) (talosConfig, error) {
	decoder := yaml.NewDecoder(bytes.NewReader(raw))
	for {
		var config talosConfig
		err := decoder.Decode(&config)
		if errors.Is(err, io.EOF) {
			return config, errors.New("the machine config has no document with machine and cluster")
		}
		if err != nil {
			return config, fmt.Errorf("failed to decode the machine config: %w", err)
		}
		if config.Machine.Type != "" {
			return config, config.validate()
		}
	}
}

func (c talosConfig) validate() error {
	var missing []string
	for name, value := range map[string]string{
		"machine.token": c.Machine.Token, "machine.ca.crt": c.Machine.CA.Crt,
		"cluster.token": c.Cluster.Token, "cluster.ca.crt": c.Cluster.CA.Crt, "cluster.controlPlane.endpoint": c.Cluster.ControlPlane.Endpoint,
	} {
		if value == "" {
			missing = append(missing, name)
		}
	}
	slices.Sort(missing)
	if len(missing) > 0 {
		return fmt.Errorf("the machine config lacks %s", strings.Join(missing, ", "))
	}
	for _, field := range []string{
		"apiVersion", "kind", "authentication", "authorization", "cgroupRoot", "kubeletCgroups", "port", "protectKernelDefaults", "resolvConf",
		"rotateCertificates", "systemCgroups", "staticPodPath", "seccompDefault",
	} {
		if _, ok := c.Machine.Kubelet.ExtraConfig[field]; ok {
			return fmt.Errorf("kubelet configuration field %q can't be overridden", field)
		}
	}
	return nil
}

func (g *guest) talosNetwork(interfaces []talosInterface) ([]address, error) {
	if len(interfaces) == 0 {
		return g.configureNetwork(nil)
	}
	var devices []device
	for _, i := range interfaces {
		d := device{mac: i.DeviceSelector.HardwareAddr, name: i.Interface, dhcp: i.DHCP}
		for _, text := range i.Addresses {
			prefix, err := netip.ParsePrefix(text)
			if err != nil {
				return nil, fmt.Errorf("address %q is invalid or has no prefix length", text)
			}
			d.static = append(d.static, prefix)
		}
		devices = append(devices, d)
	}
	return g.addressesOf(devices)
}

// families returns the address families of the services, which are those of a Node.
func (c talosConfig) families() []family {
	families := []family{ipv4}
	if subnets := c.Cluster.Network.ServiceSubnets; len(subnets) > 0 {
		families = nil
		for _, subnet := range subnets {
			families = append(families, familyOf(subnet.Addr()))
		}
	}
	return families
}

// talosSettings returns the kubelet settings that Talos generates from the machine
// config.
func (g *guest) talosSettings(hostname string) (kubeletSettings, error) {
	raw, _ := g.storage.Read(talosConfigFile)
	config, err := parseTalos(raw)
	if err != nil {
		return kubeletSettings{}, err
	}
	file := map[string]any{"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration"}
	maps.Copy(file, config.Machine.Kubelet.ExtraConfig)
	encoded, err := sigsyaml.Marshal(file)
	if err != nil {
		return kubeletSettings{}, fmt.Errorf("writing kubelet config: %w", err)
	}
	g.storage.Write(talosKubeletFile, encoded)
	flags := kubeletFlags{"config": talosKubeletFile, "node-ip": joinAddresses(g.firstAddresses(config.families()...))}
	maps.Copy(flags, config.Machine.Kubelet.ExtraArgs)
	s, err := settingsFrom(g.storage, flags, hostname, g.console.printf)
	s.bootstrap = func() (apiAccess, error) {
		ca, err := base64.StdEncoding.DecodeString(config.Cluster.CA.Crt)
		if err != nil {
			return apiAccess{}, errors.New("cluster.ca.crt is not base64")
		}
		return apiAccess{server: config.Cluster.ControlPlane.Endpoint, ca: ca, token: config.Cluster.Token}, nil
	}
	return s, err
}
