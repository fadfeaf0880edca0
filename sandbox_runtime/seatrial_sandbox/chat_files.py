"""A team's chat as files of a workspace.

    chat/users.json            [{"id": "kim", "name": "Kim Vogel", "title": "...", "me": true}, ...]
    chat/channels.json         [{"name": "general", "topic": "...", "members": ["kim", ...]}, ...]
    chat/channels/general.jsonl  one post a line: id, user, time, text, and where there are any thread and reactions

As with mail, a new post is a minute younger than the youngest.
"""

import json
from datetime import UTC, datetime, timedelta
from typing import Annotated

from mcp.server.mcpserver.exceptions import ToolError
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from seatrial_sandbox.office_files import MAX_FILE_BYTES, replace_file
from seatrial_sandbox.workspace import Workspace

FOLDER = "chat"
"""Where the chat lies in a workspace."""
_EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


class _Record(BaseModel):
    model_config = ConfigDict(extra="allow")  # a world may know more than these tools show


class User(_Record):
    """Somebody who writes."""

    id: str
    name: str
    title: str = ""
    email: str = ""
    me: bool = False
    """Whether it is the one for whom the tools act."""


class Channel(_Record):
    """Where people write."""

    name: Annotated[str, Field(pattern=r"^[\w-]+$")]
    topic: str = ""
    members: list[str] = []


class Post(_Record):
    """What somebody wrote."""

    id: int
    user: str
    time: datetime
    text: str
    thread: int | None = None
    """The post that it answers."""
    reactions: dict[str, list[str]] = {}
    """Who reacted, by the reaction's name."""


_USERS = TypeAdapter(list[User])
_CHANNELS = TypeAdapter(list[Channel])


class ChatStore:
    """The chat of a workspace."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    def users(self) -> list[User]:
        """Everybody."""
        return self._read("users.json", _USERS)

    def me(self) -> str:
        """Id of the user for whom the tools act."""
        return next((user.id for user in self.users() if user.me), "agent")

    def channels(self) -> list[Channel]:
        """Every channel."""
        return self._read("channels.json", _CHANNELS)

    def posts(self, channel: str) -> list[Post]:
        """What was written in a channel, oldest first.

        Raises:
            ToolError: If there is no such channel, or its file is damaged.
        """
        names = [known.name for known in self.channels()]
        if channel not in names:
            raise ToolError(f"there is no channel {channel!r}; the channels are: {', '.join(names) or 'none'}")
        path = f"{FOLDER}/channels/{channel}.jsonl"
        file = self._workspace.resolve(path)
        if not file.exists():
            return []
        if file.stat().st_size > MAX_FILE_BYTES:
            raise ToolError(f"{path!r} is too large to open")
        try:
            return [Post.model_validate_json(line) for line in file.read_bytes().splitlines() if line.strip()]
        except ValidationError as error:
            raise ToolError(f"{path!r} is damaged: {error.errors()[0]['msg']}") from None

    def find(self, post_id: str) -> tuple[str, list[Post], Post]:
        """The channel of a post, all that was written there, and the post.

        Raises:
            ToolError: If there is none.
        """
        channel, _, number = post_id.rpartition("/")
        if not channel or not number.isdecimal():
            raise ToolError(f"{post_id!r} is no id; ids look like 'general/12', and get_channel_history shows them")
        posts = self.posts(channel)
        for post in posts:
            if post.id == int(number):
                return channel, posts, post
        raise ToolError(f"there is no post {post_id}; get_channel_history shows the posts of {channel}")

    def add(self, channel: str, text: str, thread: int | None = None) -> str:
        """Write something in a channel; returns its id."""
        posts = self.posts(channel)
        newest = max((post.time for known in self.channels() for post in self.posts(known.name)), default=_EPOCH)
        number = max((post.id for post in posts), default=0) + 1
        post = Post(id=number, user=self.me(), time=newest + timedelta(minutes=1), text=text, thread=thread)
        self.write(channel, [*posts, post])
        return f"{channel}/{number}"

    def write(self, channel: str, posts: list[Post]) -> None:
        """Replace what was written in a channel."""
        file = self._workspace.resolve(f"{FOLDER}/channels/{channel}.jsonl")
        file.parent.mkdir(parents=True, exist_ok=True)
        lines = [json.dumps(post.model_dump(mode="json", exclude_defaults=True), ensure_ascii=False) for post in posts]
        replace_file(file, "".join(f"{line}\n" for line in lines).encode(errors="replace"))

    def _read[T](self, name: str, kind: TypeAdapter[T]) -> T:
        file = self._workspace.file(f"{FOLDER}/{name}")
        if file.stat().st_size > MAX_FILE_BYTES:
            raise ToolError(f"{FOLDER}/{name} is too large to open")
        try:
            return kind.validate_json(file.read_bytes())
        except ValidationError as error:
            raise ToolError(f"{FOLDER}/{name} is damaged: {error.errors()[0]['msg']}") from None
