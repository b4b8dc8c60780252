// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	yaml "go.yaml.in/yaml/v3"
)

// Files that persist across reboots, at the paths that cloud-init uses.
const (
	instanceIDFile = "/var/lib/cloud/data/instance-id"
	// disabledFile disables cloud-init if it exists.
	disabledFile = "/etc/cloud/cloud-init.disabled"
	hostnameFile = "/etc/hostname"
	netplanFile  = "/etc/netplan/50-cloud-init.yaml"
	// configDirectory contains cloud-init's own settings.
	configDirectory = "/etc/cloud/cloud.cfg.d"
	// noInstance is the instance ID of a machine without a datasource.
	noInstance = "iid-datasource-none"
)

// cloudConfig is the part of #cloud-config that matters to a Node.
type cloudConfig struct {
	Hostname   string       `yaml:"hostname"`
	FQDN       string       `yaml:"fqdn"`
	WriteFiles []writeFile  `yaml:"write_files"`
	FSSetup    []fileSystem `yaml:"fs_setup"`
	Mounts     [][]string   `yaml:"mounts"`
	BootCmd    []yaml.Node  `yaml:"bootcmd"`
	RunCmd     []yaml.Node  `yaml:"runcmd"`
	PowerState struct {
		Mode string `yaml:"mode"`
	} `yaml:"power_state"`
}

type metaData struct {
	InstanceID    string `yaml:"instance-id"`
	LocalHostname string `yaml:"local-hostname"`
	Hostname      string `yaml:"hostname"`
}

// runCloudInit simulates cloud-init. Most modules run once per instance ID, so a
// reboot does not repeat runcmd.
func (g *guest) runCloudInit(s seed, found bool) (system, bool) {
	known, hasInstance := g.storage.Read(instanceIDFile)
	if _, disabled := g.storage.Read(disabledFile); disabled {
		g.console.printf("cloud-init: disabled, continuing as instance %s", known)
		return g.system(""), true
	}
	if !found {
		return g.withoutSource(string(known), hasInstance)
	}

	var meta metaData
	if err := yaml.Unmarshal(s.metaData, &meta); err != nil {
		g.console.printf("cloud-init: meta-data is not valid YAML: %v", err)
	}
	if meta.InstanceID == "" {
		meta.InstanceID = noInstance
	}
	config := g.parseUserData(s.userData, s.vendorData)
	early := g.runCommands("bootcmd", config.BootCmd)
	if hasInstance && meta.InstanceID == string(known) {
		g.console.printf("cloud-init: instance %s is already configured", known)
		return g.system(early.started()), true
	}

	g.console.printf("cloud-init: new instance %s", meta.InstanceID)
	g.storage.Write(hostnameFile, []byte(hostname(config, meta)))
	g.storage.Write(netplanFile, s.networkConfig)
	for _, f := range config.WriteFiles {
		if err := f.write(g.storage); err != nil {
			g.console.printf("cloud-init: write_files: %v", err)
		}
		if enablesKubelet(f.Path) {
			g.enable(kubeletService)
		}
	}
	g.setupDisks(config)
	effect := early.and(g.runCommands("runcmd", config.RunCmd))
	if effect.enable {
		g.enable(effect.service)
	}
	g.storage.Write(instanceIDFile, []byte(meta.InstanceID))
	g.cloudInitEnded = true
	out := g.system(effect.started())
	out.powerOff = effect.powerOff || config.PowerState.Mode == "poweroff" || config.PowerState.Mode == "halt"
	return out, true
}

// withoutSource simulates a boot without the drive on an image with no other
// datasource: cloud-init treats the machine as a new instance. The machine keeps
// its hostname, but its network is reconfigured for DHCP. The configuration is kept
// only if the image sets manual_cache_clean or disables cloud-init.
func (g *guest) withoutSource(known string, hasInstance bool) (system, bool) {
	if !hasInstance {
		// An image without any configuration uses DHCP.
		g.console.printf("cloud-init: no datasource found, no previous instance")
		return g.system(""), true
	}
	if g.keepsInstance() {
		g.console.printf("cloud-init: no datasource found, continuing as instance %s", known)
		return g.system(""), true
	}
	g.console.printf("cloud-init: no datasource found, new instance %s, network reconfigured for DHCP", noInstance)
	g.storage.Write(netplanFile, nil)
	g.storage.Write(instanceIDFile, []byte(noInstance))
	return g.system(""), true
}

// keepsInstance reports whether cloud-init's settings enable manual_cache_clean.
func (g *guest) keepsInstance() bool {
	for _, name := range filesIn(g.storage, configDirectory, ".cfg") {
		var settings struct {
			ManualCacheClean bool `yaml:"manual_cache_clean"`
		}
		content, _ := g.storage.Read(name)
		if err := yaml.Unmarshal(content, &settings); err == nil && settings.ManualCacheClean {
			return true
		}
	}
	return false
}

// parseUserData parses #cloud-config, a script, or an archive of several of them. Invalid
// data is logged and treated as empty, and the boot continues, as with cloud-init.
// Vendor-data supplies the keys that user-data does not set; keys are not merged.
func (g *guest) parseUserData(userData, vendorData []byte) cloudConfig {
	var config cloudConfig
	if bytes.HasPrefix(vendorData, []byte("#cloud-config")) {
		if err := yaml.Unmarshal(vendorData, &config); err != nil {
			g.console.printf("cloud-init: vendor-data is not valid: %v", err)
		}
	}
	parts, err := splitArchive(userData)
	if err != nil {
		g.console.printf("cloud-init: user-data is not valid: %v", err)
	}
	for n, part := range parts {
		if n == 0 {
			g.parsePart(part, &config)
			continue
		}
		var later cloudConfig
		g.parsePart(part, &later)
		config = config.merge(later)
	}
	return config
}

// parsePart parses #cloud-config or a script into the config.
func (g *guest) parsePart(userData []byte, config *cloudConfig) {
	first, _, _ := bytes.Cut(userData, []byte("\n"))
	switch header := strings.TrimSpace(string(first)); {
	case header == "#cloud-config":
		if err := yaml.Unmarshal(userData, config); err != nil {
			g.console.printf("cloud-init: user-data is not valid: %v", err)
		}
	case strings.HasPrefix(header, "#!"):
		script := yaml.Node{Kind: yaml.ScalarNode, Value: string(userData)}
		config.RunCmd = []yaml.Node{script}
	case len(bytes.TrimSpace(userData)) > 0:
		g.console.printf("cloud-init: unknown user-data format: %.40q", header)
	}
}

// hostname returns the hostname that cloud-init would set: user-data takes precedence
// over meta-data, and only the first label of an FQDN is used.
func hostname(config cloudConfig, meta metaData) string {
	for _, name := range []string{config.Hostname, config.FQDN, meta.LocalHostname, meta.Hostname} {
		if name != "" {
			short, _, _ := strings.Cut(name, ".")
			return strings.ToLower(short)
		}
	}
	return "localhost"
}

// runCommands returns the effect of the commands on the kubelet's unit.
func (g *guest) runCommands(module string, commands []yaml.Node) unitEffect {
	var total unitEffect
	for i := range commands {
		words, err := commandWords(&commands[i])
		if err != nil {
			g.console.printf("cloud-init: %s: %v", module, err)
			continue
		}
		for _, command := range words {
			total = total.and(g.effectOf(command, maxScriptDepth))
		}
	}
	return total
}

// commandWords splits one entry of runcmd: a list is a command with its arguments, a
// string is a shell script with any number of commands.
func commandWords(node *yaml.Node) ([][]string, error) {
	switch node.Kind {
	case yaml.SequenceNode:
		var words []string
		if err := node.Decode(&words); err != nil {
			return nil, fmt.Errorf("line %d: command arguments must be strings", node.Line)
		}
		return [][]string{words}, nil
	case yaml.ScalarNode:
		return shellCommands(node.Value), nil
	default:
		return nil, errors.New("a command must be a string or a list of strings")
	}
}
