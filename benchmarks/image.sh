#!/bin/sh
# Builds the image of envs/polder.def with the CPU lock, from Debian's packages and Python's alone, and runs the micro run in it
# without a network. Needs root, 5 GB and some 20 minutes:
#     BIND=FILES sh benchmarks/image.sh FOLDER MIRROR
# MIRROR is the mirror of Debian that /etc/apt names. Where there is no Apptainer, that of Debian's unstable distribution is
# installed into FOLDER and run from there; it needs debootstrap. BIND (`A,B:C`) names what pip needs for its index besides
# the network, such as /etc/pip.conf.
set -eu
folder=$(readlink -f "$1") mirror=$2
cd "$(dirname "$0")/.."
mkdir -p "$folder/bin"
PATH=$folder/bin:$PATH:/usr/sbin:/sbin

if ! command -v apptainer >/dev/null; then
    debootstrap --variant=minbase --include=apptainer,debootstrap,ca-certificates sid "$folder/unstable" "$mirror"
    cat >"$folder/bin/enter" <<'END'
#!/bin/sh
# Apptainer changes the root of its mounts, so it must be one itself: no chroot. All folders that are not the system's are the
# host's under their own names.
set -eu
root=$1 here=$PWD
shift
mount --rbind "$root" "$root"
for path in /*; do
    case $path in /bin | /boot | /etc | /lib* | /run | /sbin | /usr | /var) continue ;; esac
    [ -d "$path" ] && [ ! -L "$path" ] && mkdir -p "$root$path" && mount --rbind "$path" "$root$path"
done
for pair in /etc/resolv.conf /etc/hosts $(echo "${BIND:-}" | tr , ' '); do
    there=$root${pair##*:}
    if [ -d "${pair%%:*}" ]; then mkdir -p "$there"; else mkdir -p "$(dirname "$there")" && touch "$there"; fi
    mount --rbind "${pair%%:*}" "$there"
done
mkdir -p "$root/old"
cd "$root"
pivot_root . old
umount -l /old
cd "$here"
exec /usr/bin/apptainer "$@"
END
    printf '#!/bin/sh\nexec unshare --mount --propagation private sh %s %s "$@"\n' "$folder/bin/enter" "$folder/unstable" \
        >"$folder/bin/apptainer"
    chmod +x "$folder/bin/apptainer"
    # Root needs no capability to compute; Apptainer would ask for all, and a machine that is a container itself has not all.
    sed -i 's/^\(root default capabilities =\).*/\1 no/' "$folder/unstable/etc/apptainer/apptainer.conf"
fi
# To build it needs them all, which a namespace of users gives, of the files there alone.
build() {
    if [ ! -e "$folder/bin/enter" ]; then
        apptainer build "$@"
        return
    fi
    rm -f "$folder/mapped" && mkfifo "$folder/mapped"
    unshare --user --mount --propagation private sh -c 'read -r line <"$0" && exec sh "$@"' \
        "$folder/mapped" "$folder/bin/enter" "$folder/unstable" build "$@" &
    until echo '0 0 65536' >"/proc/$!/uid_map" && echo '0 0 65536' >"/proc/$!/gid_map"; do sleep 0.1; done 2>"$folder/errors"
    echo go >"$folder/mapped"
    wait $!
}
apptainer --version

# A folder, which Apptainer takes as an image: to pack it into one file takes longer than all else.
image=$folder/polder
if [ ! -e "$image" ]; then
    [ -d "$folder/base" ] || debootstrap --variant=minbase bookworm "$folder/base" "$mirror"
    rm -rf "$folder/base/dev"/* # a namespace of users makes no devices, and Apptainer brings its own
    shown=''
    for pair in $(echo "${BIND:-}" | tr , ' '); do
        there=$folder/base${pair##*:}
        if [ -d "${pair%%:*}" ]; then mkdir -p "$there"; else mkdir -p "$(dirname "$there")" && touch "$there"; fi
        shown=$shown,${pair##*:}
    done
    build --sandbox ${shown:+--bind "${shown#,}"} --build-arg LOCK=cpu --build-arg BOOTSTRAP=localimage \
        --build-arg "FROM=$folder/base" "$image" envs/polder.def
fi

# A copy of the project with a platform that names the image; Snakemake is here, every step's Python in the image.
copy=$folder/project
rm -rf "$copy"
mkdir "$copy"
cp -a Snakefile rules workflow pipeline envs config local slurm README.md "$copy"
cat >"$copy/workflow/platforms/image.yaml" <<END
name: image
devices: 2
launch: torchrun --standalone --nproc-per-node=2
container: $image
END
snakemake=$PWD/.venv/bin/snakemake python=$PWD/.venv/bin/python
cd "$copy"
export DS_ACCELERATOR=cpu
unshare --net sh -c 'ip link set lo up; exec "$@"' sh \
    "$snakemake" --profile local --configfile config/micro.yaml --config platform=image
"$python" -m pipeline verify results/micro
for archive in results/micro/provenance/archives/*.zip; do (cd results/micro && unzip -qo "$OLDPWD/$archive"); done
others=$(grep -L '"container":"polder"' results/micro/provenance/records/*.json) || true
[ -z "$others" ] || { echo "error: these records do not name the image: $others" >&2; exit 1; }
echo "all $(ls results/micro/provenance/records/*.json | wc -l) records name the image"
