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

// Where the guest keeps what must survive a reboot, as a real one does.
const (
	instanceIDFile = "/var/lib/cloud/data/instance-id"
	// disabledFile keeps cloud-init from running at all.
	disabledFile = "/etc/cloud/cloud-init.disabled"
	hostnameFile = "/etc/hostname"
	netplanFile  = "/etc/netplan/50-cloud-init.yaml"
	// configDirectory has cloud-init's own settings.
	configDirectory = "/etc/cloud/cloud.cfg.d"
	// noInstance is the id of a machine without a datasource.
	noInstance = "iid-datasource-none"
)

// cloudConfig is the part of #cloud-config that matters to a Node.
type cloudConfig struct {
	Hostname   string      `yaml:"hostname"`
	FQDN       string      `yaml:"fqdn"`
	WriteFiles []writeFile `yaml:"write_files"`
	BootCmd    []yaml.Node `yaml:"bootcmd"`
	RunCmd     []yaml.Node `yaml:"runcmd"`
}

type metaData struct {
	InstanceID    string `yaml:"instance-id"`
	LocalHostname string `yaml:"local-hostname"`
	Hostname      string `yaml:"hostname"`
}

// cloudInit does what cloud-init does at boot. Most of its work is done once per
// instance id, so a guest that reboots does not run its commands again.
func (g *guest) cloudInit() (system, bool) {
	known, hasInstance := g.storage.Read(instanceIDFile)
	if _, disabled := g.storage.Read(disabledFile); disabled {
		g.console.printf("cloud-init: disabled, going on as instance %s", known)
		return g.system(""), true
	}
	s, found := findSeed(g.drives(), g.console)
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
		g.console.printf("cloud-init: instance %s, nothing new", known)
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
	effect := early.and(g.runCommands("runcmd", config.RunCmd))
	if effect.enable {
		g.enable(effect.service)
	}
	g.storage.Write(instanceIDFile, []byte(meta.InstanceID))
	return g.system(effect.started()), true
}

// withoutSource is a boot without the drive, of an image that knows no datasource
// but this: cloud-init treats the machine as a new instance.
// The system keeps its name, but its network is reconfigured for DHCP. Only an
// image that sets manual_cache_clean or disables cloud-init keeps its
// configuration.
func (g *guest) withoutSource(known string, hasInstance bool) (system, bool) {
	if !hasInstance {
		// An image without any configuration uses DHCP.
		g.console.printf("cloud-init: no datasource found, and no earlier instance")
		return g.system(""), true
	}
	if g.keepsInstance() {
		g.console.printf("cloud-init: no datasource found, going on as instance %s", known)
		return g.system(""), true
	}
	g.console.printf("cloud-init: no datasource found, new instance %s with a network of its own", noInstance)
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

// parseUserData reads #cloud-config or a script. What cloud-init could not read
// is reported and treated as empty, and the boot continues. Vendor-data supplies the
// keys that user-data does not set; keys are not merged.
func (g *guest) parseUserData(userData, vendorData []byte) cloudConfig {
	var config cloudConfig
	if bytes.HasPrefix(vendorData, []byte("#cloud-config")) {
		if err := yaml.Unmarshal(vendorData, &config); err != nil {
			g.console.printf("cloud-init: vendor-data is not valid: %v", err)
		}
	}
	first, _, _ := bytes.Cut(userData, []byte("\n"))
	switch header := strings.TrimSpace(string(first)); {
	case header == "#cloud-config":
		if err := yaml.Unmarshal(userData, &config); err != nil {
			g.console.printf("cloud-init: user-data is not valid: %v", err)
		}
	case strings.HasPrefix(header, "#!"):
		script := yaml.Node{Kind: yaml.ScalarNode, Value: string(userData)}
		config.RunCmd = []yaml.Node{script}
	case len(bytes.TrimSpace(userData)) > 0:
		g.console.printf("cloud-init: user-data of an unknown kind: %.40q", header)
	}
	return config
}

// hostname follows cloud-init: the config before the meta-data, and only the
// first label of a full name.
func hostname(config cloudConfig, meta metaData) string {
	for _, name := range []string{config.Hostname, config.FQDN, meta.LocalHostname, meta.Hostname} {
		if name != "" {
			short, _, _ := strings.Cut(name, ".")
			return strings.ToLower(short)
		}
	}
	return "localhost"
}

// runCommands applies the effect that commands have on the kubelet.
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

// commandWords splits one entry of runcmd: a list is the words of one command, a
// string is shell text with as many commands as it likes.
func commandWords(node *yaml.Node) ([][]string, error) {
	switch node.Kind {
	case yaml.SequenceNode:
		var words []string
		if err := node.Decode(&words); err != nil {
			return nil, fmt.Errorf("line %d: a command's words must be strings", node.Line)
		}
		return [][]string{words}, nil
	case yaml.ScalarNode:
		return shellCommands(node.Value), nil
	default:
		return nil, errors.New("a command must be a string or a list of strings")
	}
}
