// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"regexp"
	"strings"

	yaml "go.yaml.in/yaml/v3"
)

// rancherConfig is the part of /etc/rancher/{k3s,rke2}/config.yaml that matters to
// a Node.
type rancherConfig struct {
	Server     string   `yaml:"server"`
	Token      string   `yaml:"token"`
	NodeName   string   `yaml:"node-name"`
	NodeIP     string   `yaml:"node-ip"`
	NodeLabel  []string `yaml:"node-label"`
	NodeTaint  []string `yaml:"node-taint"`
	KubeletArg []string `yaml:"kubelet-arg"`
}

// rancherSettings reads the configuration of a k3s or RKE2 agent. Both run a kubelet
// in their own process and set its flags.
//
// A real agent gets its certificate from the server's supervisor, which validates the
// token with the API server. Here the agent requests the certificate from the API
// server, which validates the token against the same Secret.
func (g *guest) rancherSettings(program, hostname string) (kubeletSettings, error) {
	name := "/etc/rancher/" + program + "/config.yaml"
	raw, ok := g.storage.Read(name)
	if !ok {
		return kubeletSettings{}, fmt.Errorf("--server is required: %s has no configuration", program)
	}
	var config rancherConfig
	if err := yaml.Unmarshal(raw, &config); err != nil {
		return kubeletSettings{}, fmt.Errorf("failed to load configuration file %s: %w", name, err)
	}
	if config.Server == "" || config.Token == "" {
		return kubeletSettings{}, fmt.Errorf("--server and --token are required in %s", name)
	}
	if ips := g.firstAddresses(ipv4, ipv6); config.NodeIP == "" && len(ips) == 1 {
		// An agent passes the address that it detects, but not those of dual-stack hosts
		// if the server's own cloud controller manager is disabled.
		config.NodeIP = ips[0].String()
	}
	// An agent has no kubeadm config file unless one is configured.
	flags := kubeletFlags{"config": ""}
	for flag, value := range map[string]string{
		"hostname-override": config.NodeName, "node-ip": config.NodeIP,
		"node-labels": strings.Join(config.NodeLabel, ","), "register-with-taints": strings.Join(config.NodeTaint, ","),
	} {
		if value != "" {
			flags[flag] = value
		}
	}
	for _, arg := range config.KubeletArg {
		flags.add("--" + arg)
	}
	s, err := settingsFrom(g.storage, flags, hostname, g.console.printf)
	s.bootstrap = func() (apiAccess, error) { return g.supervisorAccess(config) }
	return s, err
}

// bootstrapToken matches the token format of the API server.
var bootstrapToken = regexp.MustCompile(`^[a-z0-9]{6}\.[a-z0-9]{16}$`)

// supervisorAccess checks the token as an agent does: K10<hash of the CA>::<token>.
func (g *guest) supervisorAccess(config rancherConfig) (apiAccess, error) {
	ca := g.runtime.options.CACerts
	if len(ca) == 0 {
		return apiAccess{}, fmt.Errorf("failed to get CA certs: no response from %s/cacerts", config.Server)
	}
	token := config.Token
	if rest, full := strings.CutPrefix(token, "K10"); full {
		hash, credentials, found := strings.Cut(rest, "::")
		if !found {
			return apiAccess{}, errors.New("invalid token format")
		}
		want, err := caHash(ca)
		if err != nil {
			return apiAccess{}, err
		}
		if hash != want {
			return apiAccess{}, fmt.Errorf("token CA hash does not match the Cluster CA certificate hash: %s != %s", hash, want)
		}
		token = credentials
	} else {
		g.console.printf("warning: the token does not include a CA hash, the server is not verified")
	}
	if !bootstrapToken.MatchString(token) {
		return apiAccess{}, errors.New("the token is not a bootstrap token; server tokens are not supported")
	}
	return apiAccess{server: config.Server, ca: ca, token: token}, nil
}

// caHash returns k3s's hash of a CA bundle: of the whole file if it contains one
// certificate, otherwise of the last certificate, which is the root.
func caHash(bundle []byte) (string, error) {
	var blocks []*pem.Block
	for rest := bundle; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		blocks = append(blocks, block)
	}
	switch len(blocks) {
	case 0:
		return "", errors.New("no certificates found in the CA bundle")
	case 1:
		sum := sha256.Sum256(bytes.Clone(bundle))
		return hex.EncodeToString(sum[:]), nil
	}
	sum := sha256.Sum256(blocks[len(blocks)-1].Bytes)
	return hex.EncodeToString(sum[:]), nil
}
