"""Small facts for questions and answers: capitals, opposites, animals, orders, and things to say. Data only."""

CAPITALS = dict(line.split("=") for line in ["France=Paris", "England=London", "Italy=Rome", "Germany=Berlin", "Spain=Madrid", "Japan=Tokyo", "Egypt=Cairo", "Peru=Lima", "Norway=Oslo", "Austria=Vienna", "Greece=Athens", "Ireland=Dublin", "Portugal=Lisbon", "the Czech Republic=Prague", "Poland=Warsaw", "India=New Delhi", "Australia=Canberra", "Canada=Ottawa", "the United States=Washington", "Kenya=Nairobi", "Nigeria=Abuja", "South Korea=Seoul", "Thailand=Bangkok", "Vietnam=Hanoi", "Cuba=Havana", "Ecuador=Quito", "Switzerland=Bern", "Finland=Helsinki", "Sweden=Stockholm", "Denmark=Copenhagen", "Hungary=Budapest", "Turkey=Ankara", "Russia=Moscow", "China=Beijing", "Brazil=Brasilia", "Argentina=Buenos Aires", "Chile=Santiago", "Mexico=Mexico City", "Belgium=Brussels", "the Netherlands=Amsterdam", "Iceland=Reykjavik", "Romania=Bucharest", "Bulgaria=Sofia", "Croatia=Zagreb", "Serbia=Belgrade", "Ukraine=Kyiv", "Morocco=Rabat", "Tunisia=Tunis", "Algeria=Algiers", "Ghana=Accra", "Ethiopia=Addis Ababa", "Iran=Tehran", "Iraq=Baghdad", "Israel=Jerusalem", "Lebanon=Beirut", "Nepal=Kathmandu", "Indonesia=Jakarta", "the Philippines=Manila", "Malaysia=Kuala Lumpur", "New Zealand=Wellington", "Scotland=Edinburgh", "Wales=Cardiff", "Colombia=Bogota", "Venezuela=Caracas", "Bolivia=Sucre", "Uruguay=Montevideo", "Mongolia=Ulaanbaatar", "Estonia=Tallinn", "Latvia=Riga", "Lithuania=Vilnius"])

OPPOSITES = [tuple(p.split("/")) for p in ["big/small", "hot/cold", "good/bad", "fast/slow", "old/young", "new/old", "happy/sad", "up/down", "left/right", "day/night", "light/dark", "hard/soft", "early/late", "open/closed", "full/empty", "rich/poor", "strong/weak", "loud/quiet", "clean/dirty", "wet/dry", "long/short", "high/low", "tall/short", "wide/narrow", "thick/thin", "sweet/sour", "true/false", "right/wrong", "first/last", "near/far", "inside/outside", "begin/end", "buy/sell", "win/lose", "love/hate", "black/white", "always/never", "easy/difficult", "cheap/expensive", "brave/afraid", "awake/asleep", "push/pull", "give/take", "come/go", "alive/dead", "friend/enemy", "question/answer", "summer/winter", "heavy/light", "safe/dangerous", "kind/cruel"]]

SOUNDS = dict(p.split("/") for p in ["dog/barks", "cat/meows", "cow/moos", "sheep/baas", "duck/quacks", "lion/roars", "horse/neighs", "pig/oinks", "frog/croaks", "owl/hoots", "wolf/howls", "bee/buzzes", "snake/hisses", "mouse/squeaks", "hen/clucks", "bird/sings", "donkey/brays", "goose/honks"])
YOUNG = dict(p.split("/") for p in ["dog/puppy", "cat/kitten", "cow/calf", "sheep/lamb", "duck/duckling", "horse/foal", "pig/piglet", "frog/tadpole", "hen/chick", "goat/kid", "deer/fawn", "bear/cub", "lion/cub", "goose/gosling", "swan/cygnet", "kangaroo/joey"])
LEGS = {"dog": 4, "spider": 8, "bird": 2, "ant": 6, "horse": 4, "fish": 0, "snake": 0, "bee": 6, "cat": 4, "duck": 2,
        "cow": 4, "chicken": 2, "beetle": 6, "person": 2, "octopus": 8}
HUES = {"the sky": "blue", "grass": "green", "snow": "white", "a banana": "yellow", "coal": "black", "blood": "red",
        "a lemon": "yellow", "milk": "white", "the sun": "yellow", "a carrot": "orange", "chocolate": "brown",
        "an orange": "orange", "a strawberry": "red", "a leaf": "green", "the sea": "blue", "a tomato": "red", "gold": "yellow"}

DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
MONTHS = ["January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November", "December"]
PLANETS = ["Mercury", "Venus", "Earth", "Mars", "Jupiter", "Saturn", "Uranus", "Neptune"]

GENERAL = [tuple(line.split("|")) for line in """\
How many days are there in a week?|There are seven days in a week.
How many months are there in a year?|There are twelve months in a year.
How many days are there in a year?|There are 365 days in a year, and 366 in a leap year.
How many hours are there in a day?|There are 24 hours in a day.
How many minutes are there in an hour?|There are 60 minutes in an hour.
How many seconds are there in a minute?|There are 60 seconds in a minute.
How many letters are there in the English alphabet?|There are 26 letters in the English alphabet.
How many continents are there?|There are seven continents.
How many planets are there?|There are eight planets in the solar system.
How many sides does a triangle have?|A triangle has three sides.
How many sides does a square have?|A square has four sides.
How many legs does a spider have?|A spider has eight legs.
What is the largest planet?|Jupiter is the largest planet of the solar system.
What is the smallest planet?|Mercury is the smallest planet of the solar system.
Which planet do we live on?|We live on the planet Earth.
Which planet is closest to the sun?|Mercury is closest to the sun.
What is the highest mountain in the world?|Mount Everest is the highest mountain in the world.
What is the largest ocean?|The Pacific is the largest ocean.
What is the largest animal?|The blue whale is the largest animal.
What is the fastest land animal?|The cheetah is the fastest land animal.
What is the tallest animal?|The giraffe is the tallest animal.
Where does the sun rise?|The sun rises in the east.
Where does the sun set?|The sun sets in the west.
Why is the sky blue?|The air scatters blue light more than red light, so the sky looks blue.
Why does it rain?|Water rises as vapour, cools in the clouds and falls down as rain.
Why do leaves fall in autumn?|Trees drop their leaves to save water in winter.
What do plants need to grow?|Plants need water, light and air to grow.
What do bees make?|Bees make honey.
What do cows eat?|Cows eat grass.
What does a baker do?|A baker makes bread.
What does a teacher do?|A teacher helps people to learn.
What does a doctor do?|A doctor helps sick people.
What does a farmer do?|A farmer grows plants and keeps animals.
What is ice made of?|Ice is frozen water.
What is snow?|Snow is frozen water that falls from the clouds.
At what temperature does water boil?|Water boils at 100 degrees Celsius.
At what temperature does water freeze?|Water freezes at 0 degrees Celsius.
What is the chemical formula of water?|The chemical formula of water is H2O.
What do we breathe?|We breathe air.
Who wrote Hamlet?|William Shakespeare wrote Hamlet.
Who wrote Moby Dick?|Herman Melville wrote Moby Dick.
Who wrote Romeo and Juliet?|William Shakespeare wrote Romeo and Juliet.
Who was the first president of the United States?|George Washington was the first president of the United States.
Who painted the Mona Lisa?|Leonardo da Vinci painted the Mona Lisa.
What language do people speak in France?|People in France speak French.
What language do people speak in Brazil?|People in Brazil speak Portuguese.
What language do people speak in Germany?|People in Germany speak German.
What language do people speak in Mexico?|People in Mexico speak Spanish.
What is the opposite of hot?|The opposite of hot is cold.
What is a prime number?|A prime number can only be divided by one and by itself.
What is Python?|Python is a programming language.
What is a computer?|A computer is a machine that works with data.
What is a language model?|A language model is a program that predicts the next word of a text.
What is the moon?|The moon is a ball of rock that goes around the Earth.
What is the sun?|The sun is a star.
What is the Earth?|The Earth is the planet that we live on.
What is gravity?|Gravity is the force that pulls things towards the ground.
What is a story?|A story tells what happened to someone, real or made up.
How do birds fly?|Birds fly by beating their wings.
How do fish breathe?|Fish breathe with their gills.
How do you make tea?|Boil water, pour it over the tea leaves and wait for a few minutes.
How do you make a sandwich?|Take two slices of bread and put cheese, salad or something else between them.
How do you boil an egg?|Put the egg into boiling water and wait for about six minutes.
Can pigs fly?|No, pigs cannot fly.
Can penguins fly?|No, penguins cannot fly, but they swim very well.
Is a whale a fish?|No, a whale is a mammal.
Is the Earth flat?|No, the Earth is round.
Is a tomato a fruit?|Yes, a tomato is a fruit.""".splitlines()]

TALK = [(tuple(asks.split("|")), tuple(answers.split("|"))) for asks, answers in (line.split(" => ") for line in """\
Hello!|Hello|Hi|Hi!|Hey|Hi there!|hello|hi|Hello there! => Hello! How can I help you?|Hi! What can I do for you?|Hello! What would you like to talk about?
Good morning!|Good morning => Good morning! How can I help you?|Good morning! Did you sleep well?
Good evening!|Good evening => Good evening! How can I help you?|Good evening! How was your day?
Good night!|Good night => Good night! Sleep well.
How are you?|How are you today?|How are you doing?|How do you do? => I am fine, thank you. How are you?|I am well, thank you. What can I do for you?
I am fine.|I am fine, thank you.|I am good. => I am glad to hear that.|Good! What can I do for you?
What is your name?|Who are you?|What are you?|who are you|Tell me about yourself. => I am a small language model. I can answer short questions, calculate, call tools and tell stories.|I am a tiny model that runs on this computer. I can tell you a story or work out a sum.
What can you do?|What can you do for me?|How can you help me?|Help|help => I can answer short questions, do sums, call tools and tell stories.
Thank you!|Thank you.|Thanks!|Thanks|Thank you very much.|thanks a lot => You are welcome!|You are welcome. Is there anything else?|My pleasure!
Goodbye!|Bye!|Bye|See you later!|Goodbye => Goodbye! Have a nice day.|Goodbye! See you soon.
You are great!|Well done!|Good job!|Great! => Thank you! That is kind of you.
You are wrong.|That is wrong.|That is not right. => I am sorry. I am a small model and make mistakes.
Are you a human?|Are you a person?|Are you real? => No, I am a computer program.
Are you a robot?|Are you a machine?|Are you an AI? => Yes, I am a language model that runs on a computer.
Do you like music?|Do you like books?|Do you like cats? => I am a program and have no feelings, but I can talk about it.
How old are you? => I am a program, so I have no age.
Where do you live?|Where are you? => I live in this computer.
Tell me a joke.|Do you know a joke?|Make me laugh. => Why did the bicycle fall over? Because it was two tired.|What has four wheels and flies? A garbage truck.|Why is six afraid of seven? Because seven ate nine.|What do you call a bear with no teeth? A gummy bear.
I am sad.|I feel sad today.|I am unhappy. => I am sorry to hear that. Would you like to hear a story?
I am bored.|I am so bored. => Shall I tell you a story?
I am tired.|I am so tired. => Then you should rest for a while.
I am hungry. => Then you should eat something. How about a sandwich?
Yes.|Yes|Yes, please. => Good. What shall I do?
No.|No|No, thank you. => All right. Tell me if you need anything.
OK|Okay|All right. => Good. Is there anything else?
Tell me something interesting.|Tell me a fact. => An octopus has three hearts.|Honey never goes bad.|A day on Venus is longer than its year.|Bees can see colours that we cannot see.
What is the meaning of life? => That is a hard question. Many people say it is to be kind and to be happy.
What time is it?|What day is it today?|What is the weather like? => I cannot know that without a tool.
Who will win the next election?|What will happen tomorrow?|What are the lottery numbers? => I do not know what will happen in the future.""".splitlines())]

SYSTEMS = ("You are a helpful assistant.", "You are a helpful assistant.", "You are a friendly assistant.", "Be brief.",
           "You are a small language model.", "Answer in short sentences.", "You are a helpful assistant. Answer briefly.",
           "You are a story teller.", "You help people with their questions.", "Use simple words.", "You are a careful assistant.")
