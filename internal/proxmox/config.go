// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"go.yaml.in/yaml/v3"
)

// Config is the cloud config: the Clusters that the provider manages.
type Config struct {
	Features Features
	Clusters []ClusterConfig
}

// Features are settings that the cloud config shares with other Proxmox controllers
// for Kubernetes, so one file can serve all of them.
type Features struct {
	// Provider is "default" or "capmox"; both mean the same here.
	Provider string
}

// ClusterConfig contains the URLs and credentials of one Cluster. It requires a token
// (ID and secret, each inline or from a file that is reloaded when it changes) or a
// login.
type ClusterConfig struct {
	Region string
	// URLs of the Cluster's Hosts; each serves the whole API.
	URLs []string

	// Insecure accepts any certificate.
	Insecure bool
	// CA that signed the Hosts' certificates, in PEM. With CAFile it is the content of
	// the file when the config was read; the file is reloaded when it changes.
	CA     string
	CAFile string
	// Fingerprints (SHA-256) of the Hosts' certificates, instead of a CA.
	Fingerprints []string
	// ProxyURL is the proxy for requests to the Cluster, which may contain a password. If
	// empty, the environment decides (HTTPS_PROXY, NO_PROXY).
	ProxyURL Secret

	TokenID         string
	TokenSecret     Secret
	TokenIDFile     string
	TokenSecretFile string

	Username string
	Password Secret
	// passwordFile contains the password of a root login.
	passwordFile string

	// Root is a login of root@pam for options that no token may set; nil = none.
	Root *RootLogin
}

// LoadConfig reads the cloud config. Its error is one line with file, line, field,
// the value found and the values allowed.
func LoadConfig(path string) (Config, error) {
	if path == "" {
		return Config{}, errors.New("reading the cloud config: no file given: set --cloud-config or CLOUD_CONFIG")
	}
	content, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Config{}, fmt.Errorf("reading the cloud config: %s does not exist: check --cloud-config and the mounted secret", path)
	case err != nil:
		return Config{}, fmt.Errorf("reading the cloud config: %w", err)
	}
	config, err := ParseConfig(content)
	if err != nil {
		return Config{}, fmt.Errorf("reading the cloud config %s: %w", path, err)
	}
	return config, nil
}

// ParseConfig parses, validates and normalizes the cloud config. Its error contains
// line and field.
func ParseConfig(content []byte) (Config, error) {
	root, err := parseYAML(content)
	if err != nil {
		return Config{}, err
	}
	return readConfig(root, "")
}

// parseYAML returns the root of the cloud config.
func parseYAML(content []byte) (*yaml.Node, error) {
	var document yaml.Node
	if err := yaml.Unmarshal(content, &document); err != nil {
		return nil, fmt.Errorf("bad YAML: %s", yamlMessage(err))
	}
	if len(document.Content) == 0 {
		return nil, errors.New(`the file is empty: want "clusters:" with at least one cluster`)
	}
	return document.Content[0], nil
}

// ParseChartValues parses the cloud config in the chart's values, below config. Its error
// contains the line in the values.
func ParseChartValues(content []byte) (Config, error) {
	var values struct {
		Config yaml.Node `yaml:"config"`
	}
	if err := yaml.Unmarshal(content, &values); err != nil {
		return Config{}, fmt.Errorf("bad YAML: %s", yamlMessage(err))
	}
	if values.Config.IsZero() || values.Config.Tag == "!!null" {
		return Config{}, errors.New(`config.clusters: found none, want at least one cluster with region, url and a token`)
	}
	return readConfig(&values.Config, "config")
}

// readConfig reads the cloud config. field is where it is stored.
func readConfig(n *yaml.Node, field string) (Config, error) {
	var config Config
	err := readMapping(n, field, map[string]reader{
		"features": func(n *yaml.Node, field string) error {
			return readMapping(n, field, map[string]reader{"provider": oneOf(&config.Features.Provider, "default", "capmox")})
		},
		"clusters": func(n *yaml.Node, field string) error {
			return readList(n, field, func(n *yaml.Node, field string) error {
				cluster, err := readCluster(n, field)
				config.Clusters = append(config.Clusters, cluster)
				return err
			})
		},
	})
	if err != nil {
		return Config{}, err
	}
	if len(config.Clusters) == 0 {
		return Config{}, errors.New(`clusters: found none, want at least one cluster with region, url and a token`)
	}
	return config, checkUniqueRegions(config.Clusters)
}

func checkUniqueRegions(clusters []ClusterConfig) error {
	first := map[string]int{}
	for i, cluster := range clusters {
		if j, taken := first[cluster.Region]; taken {
			return fmt.Errorf("clusters[%d].region: found %q, which is also the region of clusters[%d]: a region is one cluster; list all hosts of one cluster in its urls", i, cluster.Region, j)
		}
		first[cluster.Region] = i
	}
	return nil
}

// readCluster reads and normalizes an entry of clusters.
func readCluster(n *yaml.Node, field string) (ClusterConfig, error) {
	var (
		c                        ClusterConfig
		url, caFile, fingerprint string
		urls                     []string
	)
	err := readMapping(n, field, map[string]reader{
		"region":            text(&c.Region),
		"url":               text(&url),
		"urls":              texts(&urls),
		"insecure":          boolean(&c.Insecure),
		"ca":                text(&c.CA),
		"ca_file":           text(&caFile),
		"fingerprint":       text(&fingerprint),
		"proxy_url":         secret(&c.ProxyURL),
		"token_id":          text(&c.TokenID),
		"token_secret":      secret(&c.TokenSecret),
		"token_id_file":     text(&c.TokenIDFile),
		"token_secret_file": text(&c.TokenSecretFile),
		"username":          text(&c.Username),
		"password":          secret(&c.Password),
		"root":              func(n *yaml.Node, field string) error { return readRoot(&c, n, field) },
	})
	if err != nil {
		return c, err
	}
	if url != "" {
		c.URLs = append(c.URLs, url)
	}
	c.URLs = append(c.URLs, urls...)
	if fingerprint != "" {
		c.Fingerprints = splitTags(fingerprint)
	}
	if caFile != "" {
		if err := c.readCA(caFile); err != nil {
			return c, fmt.Errorf("line %d: %s.%w", lineOf(n, err), field, err)
		}
	}
	if err := c.normalize(); err != nil {
		return c, fmt.Errorf("line %d: %s.%w", lineOf(n, err), field, err)
	}
	return c, nil
}

func readRoot(c *ClusterConfig, n *yaml.Node, field string) error {
	c.Root = &RootLogin{Username: RootUser}
	return readMapping(n, field, map[string]reader{
		"username":      text(&c.Root.Username),
		"password":      secret(&c.Root.Password),
		"password_file": text(&c.Root.PasswordFile),
	})
}

func (c *ClusterConfig) readCA(path string) error {
	if c.CA != "" {
		return errors.New("ca_file: found together with ca: set one of them")
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("ca_file: %w: mount the file, for instance /etc/pve/pve-root-ca.pem of a Proxmox host", err)
	}
	c.CA, c.CAFile = string(content), path
	if !x509.NewCertPool().AppendCertsFromPEM(content) {
		return fmt.Errorf("ca_file: found no certificate in %s, want PEM (-----BEGIN CERTIFICATE-----)", path)
	}
	return nil
}
